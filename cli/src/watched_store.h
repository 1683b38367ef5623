/// \file
/// A store that another thread can watch while a question is open.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "foresail/runtime/store.h"
#include "worker_rendezvous.h"

namespace foresail::cli {

/// This rank's own connection: counts, and notes since when a question is open.
class WatchedStore : public runtime::Store {
 public:
  struct Question {
    std::chrono::steady_clock::time_point since;
    std::string text;
  };

  void open(std::unique_ptr<runtime::Store> store) { store_ = std::move(store); }
  void close() { store_.reset(); }

  void set(const std::string& key, const std::string& value) override {
    ask("set " + key, [&] { store_->set(key, value); });
  }
  std::string get(const std::string& key) override {
    std::string value;
    ask("get " + key, [&] { value = store_->get(key); });
    return value;
  }
  std::int64_t add(const std::string& key, std::int64_t delta) override {
    std::int64_t sum = 0;
    ask("add " + key, [&] { sum = store_->add(key, delta); });
    return sum;
  }
  bool has(const std::string& key) override {
    bool is_there = false;
    ask("check " + key, [&] { is_there = store_->has(key); });
    return is_there;
  }

  template <class Call>
  void ask(const std::string& text, const Call& call) {
    const auto start = std::chrono::steady_clock::now();
    {
      const std::scoped_lock lock(mutex_);
      question_ = Question{start, text};
    }
    try {
      call();
    } catch (...) {
      close_question(start);
      throw;
    }
    close_question(start);
  }

  std::optional<Question> open_question() const {
    const std::scoped_lock lock(mutex_);
    return question_;
  }
  /// The wait goes on as if it had begun now.
  void wait_on() {
    const std::scoped_lock lock(mutex_);
    if (question_) question_->since = std::chrono::steady_clock::now();
  }
  StoreUse take_use() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(use_, StoreUse{});
  }

 private:
  void close_question(std::chrono::steady_clock::time_point start) {
    const std::scoped_lock lock(mutex_);
    question_.reset();
    ++use_.operations;
    use_.time += std::chrono::steady_clock::now() - start;
  }

  std::unique_ptr<runtime::Store> store_;
  mutable std::mutex mutex_;
  std::optional<Question> question_;
  StoreUse use_;
};

}  // namespace foresail::cli
