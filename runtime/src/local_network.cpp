#include "foresail/runtime/local.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "foresail/base/error.h"
#include "meeting_room.h"
#include "split_group.h"

namespace foresail::runtime {

/// Rooms by the name of their group.
class LocalNetwork::Rooms {
 public:
  explicit Rooms(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  std::shared_ptr<MeetingRoom> enter(const std::string& name, int size) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<MeetingRoom>& room = rooms_[name];
    if (room == nullptr) room = std::make_shared<MeetingRoom>(name, size, timeout_);
    FORESAIL_EXPECT(room->size() == size);
    return room;
  }

 private:
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<MeetingRoom>> rooms_;  // shared with their communicators
};

namespace {

std::size_t byte_size(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.nbytes());
}

char* bytes_of(const Tensor& tensor) {
  FORESAIL_EXPECT(tensor.is_contiguous());
  return static_cast<char*>(tensor.data_ptr());
}

Offer offer_of(std::string_view what, const Tensor& tensor) {
  return {.what = what, .data = bytes_of(tensor), .bytes = byte_size(tensor), .part_ends = {}};
}

/// Elements `first` to `end` of everybody's buffer, reduced in the order of a ring that ends with
/// member `owner`.
template <class Element>
void reduce(const std::vector<Offer>& offers, std::size_t owner, Reduction reduction,
            std::size_t first, std::size_t end, Element* target) {
  const std::size_t n = offers.size();
  const auto source = [&](std::size_t step) {
    return reinterpret_cast<const Element*>(offers[(owner + 1 + step) % n].data);
  };
  for (std::size_t i = first; i < end; ++i) {
    Element sum = source(0)[i];
    for (std::size_t step = 1; step < n; ++step) {
      const auto next = static_cast<float>(source(step)[i]);
      sum = reduction == Reduction::Sum ? static_cast<float>(sum) + next
                                        : std::max(static_cast<float>(sum), next);
    }
    target[i - first] = sum;
  }
}

void reduce_into(const std::vector<Offer>& offers, std::size_t owner, Reduction reduction,
                 std::pair<std::size_t, std::size_t> range, const Tensor& target) {
  if (target.scalar_type() == at::kFloat) {
    reduce(offers, owner, reduction, range.first, range.second, target.data_ptr<float>());
  } else {
    FORESAIL_EXPECT(target.scalar_type() == at::kBFloat16);
    reduce(offers, owner, reduction, range.first, range.second, target.data_ptr<at::BFloat16>());
  }
}

}  // namespace

class RoomCommunicator : public Communicator {
 public:
  using Connect = std::function<std::unique_ptr<Communicator>(const Endpoint::Group&)>;

  RoomCommunicator(const Endpoint::Group& group, std::shared_ptr<MeetingRoom> room, Connect connect)
      : Communicator(group.name, group.rank, group.size),
        room_(std::move(room)),
        connect_(std::move(connect)) {}
  ~RoomCommunicator() override { room_->leave(rank()); }
  RoomCommunicator(const RoomCommunicator&) = delete;
  RoomCommunicator& operator=(const RoomCommunicator&) = delete;

  void all_reduce(Tensor& tensor, Reduction reduction) override {
    const Tensor result = at::empty_like(tensor);
    const auto count = static_cast<std::size_t>(tensor.numel());
    const auto n = static_cast<std::size_t>(size());
    const std::size_t part = (count + n - 1) / n;
    room_->meet(rank(), offer_of("all_reduce", tensor), [&](const std::vector<Offer>& offers) {
      for (std::size_t owner = 0; owner < n && owner * part < count; ++owner) {
        const std::size_t first = owner * part;
        const std::size_t end = std::min(count, first + part);
        const Tensor target = result.view(-1).narrow(0, static_cast<std::int64_t>(first),
                                                     static_cast<std::int64_t>(end - first));
        reduce_into(offers, owner, reduction, {first, end}, target);
      }
    });
    tensor.copy_(result);
  }

  void all_gather(const Tensor& input, Tensor& output) override {
    FORESAIL_EXPECT(output.numel() == input.numel() * size());
    room_->meet(rank(), offer_of("all_gather", input), [&](const std::vector<Offer>& offers) {
      char* target = bytes_of(output);
      for (const Offer& offer : offers) {
        if (target != offer.data) std::copy_n(offer.data, offer.bytes, target);
        target += offer.bytes;
      }
    });
  }

  void reduce_scatter(const Tensor& input, Tensor& output) override {
    FORESAIL_EXPECT(input.numel() == output.numel() * size());
    const Tensor result = at::empty_like(output);
    const auto part = static_cast<std::size_t>(output.numel());
    const auto mine = static_cast<std::size_t>(rank());
    room_->meet(rank(), offer_of("reduce_scatter", input), [&](const std::vector<Offer>& offers) {
      reduce_into(offers, mine, Reduction::Sum, {mine * part, (mine + 1) * part}, result);
    });
    output.copy_(result);
  }

  void broadcast(Tensor& tensor, int root) override {
    room_->meet(rank(), offer_of("broadcast", tensor), [&](const std::vector<Offer>& offers) {
      const Offer& from = offers[static_cast<std::size_t>(root)];
      if (rank() != root) std::copy_n(from.data, from.bytes, bytes_of(tensor));
    });
  }

  void all_to_all(const Tensor& input, Tensor& output) override {
    const std::vector<std::int64_t> parts(static_cast<std::size_t>(size()), input.numel() / size());
    all_to_all_rows(input.view(-1), parts, output, parts);
  }

  void all_to_all_rows(const Tensor& input, const std::vector<std::int64_t>& sends, Tensor& output,
                       const std::vector<std::int64_t>& receives) override {
    const auto row = static_cast<std::size_t>(input.stride(0) * input.element_size());
    Offer offer = offer_of("all_to_all_rows", input);
    for (const std::int64_t rows : sends) {
      const std::size_t before = offer.part_ends.empty() ? 0 : offer.part_ends.back();
      offer.part_ends.push_back(before + static_cast<std::size_t>(rows) * row);
    }
    room_->meet(rank(), std::move(offer), [&](const std::vector<Offer>& offers) {
      char* target = bytes_of(output);
      const auto mine = static_cast<std::size_t>(rank());
      for (std::size_t peer = 0; peer < offers.size(); ++peer) {
        const std::vector<std::size_t>& ends = offers[peer].part_ends;
        const std::size_t first = mine == 0 ? 0 : ends[mine - 1];
        FORESAIL_EXPECT(ends[mine] - first == static_cast<std::size_t>(receives[peer]) * row);
        target = std::copy_n(offers[peer].data + first, ends[mine] - first, target);
      }
    });
  }

  void send(const Tensor& tensor, int peer) override {
    room_->post(rank(), peer, bytes_of(tensor), byte_size(tensor));
    room_->await_fetched(rank(), peer);
  }

  void recv(Tensor& tensor, int peer) override {
    room_->fetch(peer, rank(), bytes_of(tensor), byte_size(tensor));
  }

  void exchange(const Tensor& output, int to, Tensor& input, int from) override {
    room_->post(rank(), to, bytes_of(output), byte_size(output));
    recv(input, from);
    room_->await_fetched(rank(), to);
  }

  void barrier() override {
    room_->meet(rank(), {.what = "barrier", .part_ends = {}}, [](const auto&) {});
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return connect_(split_group(*this, color, key, splits_++));
  }

  void abort() override { room_->leave(rank()); }

 private:
  std::shared_ptr<MeetingRoom> room_;  // shared by the members
  Connect connect_;
  int splits_ = 0;
};

class LocalEndpoint : public Endpoint {
 public:
  explicit LocalEndpoint(LocalNetwork& network) : network_(network) {}

  std::unique_ptr<Communicator> connect(const Group& group, Store&) const override {
    return connect_to(network_, group);
  }
  void stand_by(const std::string&, Store&) const override {}
  void report_failure(const std::string&) const override {}

 private:
  static std::unique_ptr<Communicator> connect_to(LocalNetwork& network, const Group& group) {
    if (group.size == 1) return make_local_communicator(group.name);
    return std::make_unique<RoomCommunicator>(
        group, network.rooms_->enter(group.name, group.size),
        [&network](const Group& part) { return connect_to(network, part); });
  }

  LocalNetwork& network_;
};

LocalNetwork::LocalNetwork(std::chrono::milliseconds timeout)
    : rooms_(std::make_unique<Rooms>(timeout)) {}

LocalNetwork::~LocalNetwork() = default;

std::unique_ptr<Endpoint> LocalNetwork::endpoint() {
  return std::make_unique<LocalEndpoint>(*this);
}

}  // namespace foresail::runtime
