/// \file
/// One process's training step as a plain loop of libtorch calls: the calls of the runtime's stage,
/// on the same weights and samples, without Program, lanes, spans, autograd graph or checks. What
/// the executor costs is measured against it.
#pragma once

#include <memory>

#include "foresail/runtime/job.h"
#include "foresail/runtime/sample_source.h"

namespace foresail::bench {

class PlainTraining {
 public:
  struct Summary {
    double loss = 0, gradient_norm = 0;
  };
  /// `job`: a serial GPT (layer norm, gelu, learned positions, biases, a head of its own) in fp32
  /// on one rank, without recomputation. Both must outlive the object.
  PlainTraining(const runtime::Job& job, const runtime::SampleSource& samples);
  ~PlainTraining();
  PlainTraining(const PlainTraining&) = delete;
  PlainTraining& operator=(const PlainTraining&) = delete;

  Summary run_step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace foresail::bench
