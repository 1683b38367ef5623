#include "storage.h"

#include "foresail/base/error.h"

namespace foresail::runtime {
namespace {

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  FORESAIL_EXPECT(tensor.is_contiguous());
  FORESAIL_EXPECT(tensor.storage_offset() == 0);
  return *tensor.storage().unsafeGetStorageImpl();
}

c10::DataPtr release(c10::StorageImpl& storage) {
  storage.set_nbytes(0);
  return storage.set_data_ptr(c10::DataPtr(nullptr, storage.device()));
}

}  // namespace

bool has_storage(const at::Tensor& tensor) {
  return tensor.storage().nbytes() > 0;
}

at::Tensor take_storage(at::Tensor& tensor) {
  FORESAIL_EXPECT(has_storage(tensor));
  c10::StorageImpl& storage = storage_of(tensor);
  const std::size_t bytes = storage.nbytes();
  at::Tensor taken = at::empty({0}, tensor.options());
  taken.set_(c10::Storage(c10::Storage::use_byte_size_t(), bytes, release(storage),
                          storage.allocator(), storage.resizable()),
             0, tensor.sizes());
  return taken;
}

void give_storage(at::Tensor& tensor, at::Tensor from) {
  FORESAIL_EXPECT(!has_storage(tensor));
  FORESAIL_EXPECT(tensor.sizes() == from.sizes());
  FORESAIL_EXPECT(tensor.scalar_type() == from.scalar_type());
  c10::StorageImpl& source = storage_of(from);
  c10::StorageImpl& target = storage_of(tensor);
  const std::size_t bytes = source.nbytes();
  target.set_data_ptr(release(source));
  target.set_nbytes(bytes);
}

}  // namespace foresail::runtime
