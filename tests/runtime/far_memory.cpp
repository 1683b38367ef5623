#include "far_memory.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "foresail/base/error.h"

namespace foresail::testing {
namespace {

constexpr auto kFar = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 8;

std::atomic<std::int64_t> copies_to_host{0};

/// Far addresses lie in pages that nobody may touch; each block stands for one of host memory.
class FarAddresses {
 public:
  static FarAddresses& get() {
    static FarAddresses addresses;
    return addresses;
  }
  /// An address for `bytes` at `host`, never the same one again.
  void* add(void* host, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    char* far = next_;
    next_ += (bytes + kPage) / kPage * kPage;
    FORESAIL_EXPECT(next_ <= end_);
    hosts_[far] = host;
    return far;
  }
  void remove(void* far) {
    const std::scoped_lock lock(mutex_);
    hosts_.erase(far);
  }
  void* host_of(const void* far) {
    if (far == nullptr) return nullptr;
    const std::scoped_lock lock(mutex_);
    return hosts_.at(far);
  }

 private:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kReserved = std::size_t{1} << 40;

  FarAddresses() {
    void* space =
        mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    FORESAIL_EXPECT(space != MAP_FAILED);
    next_ = static_cast<char*>(space);
    end_ = next_ + kReserved;
  }

  std::mutex mutex_;
  char* next_ = nullptr;
  char* end_ = nullptr;
  std::map<const void*, void*> hosts_;
};

/// What a far storage holds: its address, and the host memory that it stands for.
struct FarBlock {
  void* address = nullptr;
  at::Tensor host;
};

void free_block(void* context) {
  auto* block = static_cast<FarBlock*>(context);
  FarAddresses::get().remove(block->address);
  delete block;
}

at::Tensor make_far(const c10::Storage& storage, const at::Tensor& like) {
  at::Tensor far = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
  far.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                   like.storage_offset());
  return far;
}

/// `host`, whose memory nobody else has, as a tensor of `device`.
at::Tensor to_far(const at::Tensor& host, c10::Device device) {
  const std::size_t bytes = host.storage().nbytes();
  c10::DataPtr data(nullptr, device);
  if (bytes > 0) {
    auto* block = new FarBlock{
        FarAddresses::get().add(host.storage().unsafeGetStorageImpl()->data(), bytes), host};
    data = c10::DataPtr(block->address, block, &free_block, device);
  }
  return make_far(
      c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, false), host);
}

/// The same memory as a tensor of the CPU.
at::Tensor to_near(const at::Tensor& far) {
  const auto bytes = static_cast<std::int64_t>(far.storage().nbytes());
  void* host = FarAddresses::get().host_of(far.storage().unsafeGetStorageImpl()->data());
  const at::TensorOptions options = at::device(at::kCPU).dtype(far.dtype());
  if (bytes == 0) return at::empty(far.sizes(), options);
  return at::from_blob(host, {bytes / static_cast<std::int64_t>(far.element_size())}, options)
      .as_strided(far.sizes(), far.strides(), far.storage_offset());
}

/// A call with far tensors, made with near ones.
class NearCall {
 public:
  explicit NearCall(const c10::OperatorHandle& op, bool takes_both)
      : schema_(op.schema()), takes_both_(takes_both) {}

  void replace_arguments(torch::jit::Stack& stack) {
    const std::size_t count = schema_.arguments().size();
    const std::size_t first = stack.size() - count;
    given_.assign(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
    for (std::size_t i = 0; i < count; ++i) {
      c10::IValue& value = stack[first + i];
      if (value.isTensor()) {
        value = near_of(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& each : value.toTensorVector()) list.push_back(near_of(each));
        value = list;
      } else if (value.isDevice() && value.toDevice().type() == kFar) {
        device_ = value.toDevice();
        value = c10::Device(at::kCPU);
      }
    }
  }

  void replace_results(torch::jit::Stack& stack) {
    const std::size_t count = schema_.returns().size();
    const std::size_t first = stack.size() - count;
    for (const auto& [far, near] : nears_) take_new_size(far, near);
    for (std::size_t i = 0; i < count; ++i) {
      c10::IValue& value = stack[first + i];
      const c10::AliasInfo* alias = schema_.returns()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) {
        value = written(*alias);
      } else if (value.isTensor()) {
        value = far_of(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& each : value.toTensorVector()) list.push_back(far_of(each));
        value = list;
      }
    }
  }

 private:
  at::Tensor near_of(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() != kFar) {
      // A number without a device may be mixed in, as with CUDA.
      const bool is_scalar = tensor.dim() == 0;
      TORCH_CHECK(takes_both_ || is_scalar, schema_.name(),
                  ": expected all tensors to be on the same device");
      return tensor;
    }
    TORCH_CHECK(!device_ || *device_ == tensor.device(), schema_.name(), ": two devices");
    device_ = tensor.device();
    at::Tensor near = to_near(tensor);
    nears_.emplace_back(tensor, near);
    if (near.storage().nbytes() > 0)
      sources_[near.storage().unsafeGetStorageImpl()->data()] = tensor;
    return near;
  }

  at::Tensor far_of(const at::Tensor& near) {
    if (!near.defined() || near.device().type() == kFar) return near;
    FORESAIL_EXPECT(device_.has_value());
    const auto source = sources_.find(near.storage().unsafeGetStorageImpl()->data());
    if (source == sources_.end()) return to_far(near, *device_);
    return make_far(source->second.storage(), near);  // a view
  }

  /// Outputs that were empty have got memory.
  void take_new_size(const at::Tensor& far, const at::Tensor& near) {
    if (far.sizes() == near.sizes()) return;
    FORESAIL_EXPECT(far.storage().nbytes() == 0);
    c10::TensorImpl* impl = far.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(to_far(near, *device_).storage());
    impl->set_sizes_and_strides(near.sizes(), near.strides(), near.storage_offset());
  }

  /// The argument that the result is.
  c10::IValue written(const c10::AliasInfo& alias) const {
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const c10::AliasInfo* own = schema_.arguments()[i].alias_info();
      if (own != nullptr && own->beforeSets() == alias.beforeSets()) return given_[i];
    }
    contract_failed("a result that is an argument", __FILE__, __LINE__);
  }

  const c10::FunctionSchema& schema_;
  bool takes_both_;
  std::vector<c10::IValue> given_;
  std::optional<c10::Device> device_;
  std::map<const void*, at::Tensor> sources_;             // of views, by their memory
  std::vector<std::pair<at::Tensor, at::Tensor>> nears_;  // far and near arguments
};

void call_near(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool takes_both) {
  // As a lane: the order of sums depends on the number of threads.
  thread_local const bool is_ready = (at::set_num_threads(1), true);
  FORESAIL_EXPECT(is_ready);
  const at::AutoDispatchBelowADInplaceOrView guard;
  NearCall call(op, takes_both);
  call.replace_arguments(*stack);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.replace_results(*stack);
}

void call_any(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_near(op, stack, false);
}

void copy(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  if ((*stack)[first].toTensor().is_cpu()) ++copies_to_host;
  call_near(op, stack, true);
}

void refuse_read(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(false, op.schema().name(), ": the host reads a value of the device by itself");
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source, std::int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (strides.data() == nullptr || strides.empty()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

class FarGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kFar; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kFar, std::exchange(current(), device.index())};
  }
  c10::Device getDevice() const override { return {kFar, current()}; }
  void setDevice(c10::Device device) const override { current() = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current() = device.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

 private:
  static c10::DeviceIndex& current() {
    thread_local c10::DeviceIndex index = 0;
    return index;
  }
};

const c10::impl::DeviceGuardImplRegistrar registrar(kFar, new FarGuard());  // lives for ever

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_any>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&copy>());
  library.impl("_local_scalar_dense", torch::CppFunction::makeFromBoxedFunction<&refuse_read>());
  library.impl("set_.source_Storage_storage_offset", &set_storage);
}

std::int64_t far_copies_to_host() {
  return copies_to_host.load();
}

}  // namespace foresail::testing
