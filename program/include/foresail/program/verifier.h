/// \file
/// Refuses a Program that could not run, before anything is simulated or launched.
#pragma once

#include <string>
#include <vector>

#include "foresail/program/program.h"

namespace foresail::program {

/// One broken rule, with the stage, the op and every term of the complaint. The last rule prints
/// the cycle: "deadlock: stage 0 send activation ... waits for stage 1 recv ... waits for ...".
struct Violation {
  enum class Rule {
    PassesOnce,       ///< every (microbatch, chunk) forward and backward exactly once per stage
    MessagesMatch,    ///< sends meet receives in order, bytes and dtype
    CollectiveOrder,  ///< per communicator the same sequence on all members
    Rendezvous,       ///< with blocking sends the program reaches its end
    Memory,           ///< peak live bytes per rank below the limit
    GradientsOnce     ///< gradients synchronised once per chunk (or bucket)
  };
  Rule rule;
  std::string message;
};

/// All broken rules, in the order above; empty if the Program may run. `Memory` is checked only if
/// memory_limit > 0. ZeRO-2 with pp = 1 synchronises once per microbatch, which counts as once.
std::vector<Violation> verify(const Program& program);

}  // namespace foresail::program

namespace foresail {
template <>
inline constexpr auto kNames<program::Violation::Rule> =
    std::to_array<Named<program::Violation::Rule>>(
        {{program::Violation::Rule::PassesOnce, "passes_once"},
         {program::Violation::Rule::MessagesMatch, "messages_match"},
         {program::Violation::Rule::CollectiveOrder, "collective_order"},
         {program::Violation::Rule::Rendezvous, "rendezvous"},
         {program::Violation::Rule::Memory, "memory"},
         {program::Violation::Rule::GradientsOnce, "gradients_once"}});
}  // namespace foresail
