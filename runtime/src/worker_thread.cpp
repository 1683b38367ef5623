#include "worker_thread.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include "foresail/runtime/tensor_memory.h"

namespace foresail::runtime {

WorkerThread::WorkerThread(Device& device)
    : thread_([this, &device, account = TensorMemory::current()] {
        const TensorMemory::Opened opened(account);
        run(device);
      }) {}

WorkerThread::~WorkerThread() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::future<void> WorkerThread::submit(std::function<void()> task) {
  std::packaged_task<void()> packaged(std::move(task));
  std::future<void> future = packaged.get_future();
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(packaged));
  }
  changed_.notify_one();
  return future;
}

void WorkerThread::run(Device& device) {
  use_one_core();
  const auto lane = device.open_lane();
  for (;;) {
    std::packaged_task<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_closing_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void use_one_core() {
  at::set_num_threads(1);
  // OpenBLAS with threads of its own does not listen to libtorch.
  using SetThreads = void (*)(int);
  static const auto set_blas_threads =
      reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set_blas_threads != nullptr) set_blas_threads(1);
}

}  // namespace foresail::runtime
