/// \file
/// Precompiled once: libtorch's headers are most of this module's build time.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>
