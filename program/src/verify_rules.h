/// \file
/// The verifier's rules, one function each: the complaints about a Program, empty if there are
/// none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "foresail/program/program.h"

namespace foresail::program {

/// Messages of one rule. Past a handful they are only counted: a wrong loop breaks every
/// microbatch.
class Complaints {
 public:
  void add(std::string message) {
    if (messages_.size() < kShown) {
      messages_.push_back(std::move(message));
    } else {
      ++left_out_;
    }
  }
  std::vector<std::string> take() {
    if (left_out_ > 0) messages_.push_back("and " + std::to_string(left_out_) + " more");
    return std::move(messages_);
  }

 private:
  static constexpr std::size_t kShown = 8;
  std::vector<std::string> messages_;
  std::size_t left_out_ = 0;
};

std::vector<std::string> check_passes(const Program& program);
std::vector<std::string> check_messages(const Program& program);
std::vector<std::string> check_collectives(const Program& program);
std::vector<std::string> check_rendezvous(const Program& program);
std::vector<std::string> check_memory(const Program& program);
std::vector<std::string> check_gradients(const Program& program);

/// Members of a group over its axes, before it is cut.
int axes_size(const Program& program, const Communicator& communicator);
/// The stages whose ranks are members of `communicator`, in increasing order.
std::vector<int> stages_of(const Program& program, const Communicator& communicator);
/// Whether its members lie on more than one stage, so that stages wait for each other.
bool is_coupling(const Program& program, const Communicator& communicator);

}  // namespace foresail::program
