/// \file
/// What a group of ranks can do together. Sizes in nccl-tests' convention: the per-rank buffer of
/// all_reduce, broadcast, send and recv; the whole gathered or scattered buffer of the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "foresail/base/names.h"
#include "foresail/runtime/store.h"
#include "foresail/runtime/tensor.h"

namespace foresail::runtime {

enum class Reduction { Sum, Max };

/// One rank's end of a communicator. Every member must issue the same operations in the same
/// order; each call returns when the rank's own part is done, or on a device when it is queued in
/// the calling thread's stream, behind which results are there. Tensors are contiguous; reductions
/// take fp32, and sums bf16 too, whose every addition rounds; the others take any type. Failures of
/// peers or network throw Error{Device} that names communicator, operation and size.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// In place.
  virtual void all_reduce(Tensor& tensor, Reduction reduction) = 0;
  /// `output` holds size() times `input`, by rank.
  virtual void all_gather(const Tensor& input, Tensor& output) = 0;
  /// Sums; `input` holds size() times `output`, and part r goes to rank r. `output` may be this
  /// rank's part of `input`.
  virtual void reduce_scatter(const Tensor& input, Tensor& output) = 0;
  virtual void broadcast(Tensor& tensor, int root) = 0;
  /// Both hold size() equal parts: part r of `input` goes to rank r.
  virtual void all_to_all(const Tensor& input, Tensor& output) = 0;
  /// The same with parts of any size: `sends[r]` rows (of dimension 0) of `input` go to rank r, and
  /// `receives[r]` come from it; one behind the other by rank.
  virtual void all_to_all_rows(const Tensor& input, const std::vector<std::int64_t>& sends,
                               Tensor& output, const std::vector<std::int64_t>& receives) = 0;
  /// When it is done the peer has begun to receive and the buffer may be reused.
  virtual void send(const Tensor& tensor, int peer) = 0;
  virtual void recv(Tensor& tensor, int peer) = 0;
  /// Sends `output` to rank `to` and receives `input` from rank `from` at once, so that all members
  /// of a ring may call it.
  virtual void exchange(const Tensor& output, int to, Tensor& input, int from) = 0;
  virtual void barrier() = 0;
  /// Ranks of equal `color` form a group, ordered by (key, rank).
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// Tells the network that collectives will use `buffer` again and again, until the handle goes
  /// away, which it must before the buffer does. May move its memory, under all views of it. Null
  /// where nothing is gained by it.
  virtual std::shared_ptr<void> register_buffer(Tensor& buffer);
  /// Makes calls that wait in other threads fail soon. The communicator is dead afterwards.
  virtual void abort() = 0;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 protected:
  Communicator(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size) {}

 private:
  std::string name_;
  int rank_ = 0;
  int size_ = 1;
};

/// One process's end of a network, from which its communicators come.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  struct Group {
    std::string name;  ///< unique in the store: "tp/0"
    int rank = 0;
    int size = 1;
    std::string kind{};  ///< of the groups that are connected in one turn: "tp"
    int color = 0;       ///< tells the groups of one turn apart
  };
  /// Connects the members of one group through `store`, which must outlive the communicator. All
  /// members must call it, in one order over all groups.
  virtual std::unique_ptr<Communicator> connect(const Group& group, Store& store) const = 0;
  /// The turn of a rank that is in none of the groups of this kind. Nothing to do where only
  /// members take part.
  virtual void stand_by(const std::string& kind, Store& store) const = 0;
  /// Throws Error{Device} if anything that has been queued has failed since. Nothing to do where
  /// calls return only when they are done.
  virtual void check() const {}
  /// This rank fails for a reason that peers cannot see: they are told, where a closed connection
  /// does not tell them anyway.
  virtual void report_failure(const std::string& reason) const = 0;
};

/// A group of one: every collective is a copy; it has no peer to send to.
std::unique_ptr<Communicator> make_local_communicator(const std::string& name);

}  // namespace foresail::runtime

namespace foresail {
template <>
inline constexpr auto kNames<runtime::Reduction> = std::to_array<Named<runtime::Reduction>>(
    {{runtime::Reduction::Sum, "sum"}, {runtime::Reduction::Max, "max"}});
}  // namespace foresail
