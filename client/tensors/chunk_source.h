#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace elixir {

// An object that can bring a chunk's bytes to the device. The interception calls it around every
// operator that reads a parameter. Any thread.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  // Gathers the distinct chunks and pins them, all or none. Throws elixir::Error.
  virtual void acquire(std::span<const uint32_t> chunks, const char* operator_name) = 0;

  // Undoes one acquire() of these chunks.
  virtual void release(std::span<const uint32_t> chunks) noexcept = 0;

  // The name of the parameter at that element; empty if there is none.
  virtual std::string parameter_at(uint32_t /*chunk*/, int64_t /*offset*/) const { return {}; }

  // acquire() for a scope that may last: no other thread's operator waits for its end.
  virtual void hold(std::span<const uint32_t> chunks, const char* holder) {
    acquire(chunks, holder);
  }
  virtual void let_go(std::span<const uint32_t> chunks) noexcept { release(chunks); }

  // Begins and ends a scope of this thread in which no step is made.
  virtual void begin_scope() {}
  virtual void end_scope() noexcept {}
};

// The link from a chunk's storage to its source. The source may end before the tensors do, while
// operators of other threads run. Any thread.
class ChunkBinding {
 public:
  // Returns null if the source has ended or not begun. Otherwise the source lives at least until
  // leave().
  ChunkSource* enter() {
    // Sequentially consistent, with end(): either end() sees this count, or this sees end()'s null.
    inside_.fetch_add(1);
    ChunkSource* const source = source_.load();
    if (source == nullptr) leave();
    return source;
  }
  void leave() {
    if (inside_.fetch_sub(1) == 1) inside_.notify_all();
  }

  bool has_source() const { return source_.load() != nullptr; }

  void begin(ChunkSource* source) { source_.store(source); }
  // Returns when no thread is inside. REQUIRES: the caller is not inside.
  void end() {
    source_.store(nullptr);
    for (uint32_t inside = inside_.load(); inside != 0; inside = inside_.load()) {
      inside_.wait(inside);
    }
  }

 private:
  std::atomic<ChunkSource*> source_ = nullptr;
  std::atomic<uint32_t> inside_ = 0;
};

// One use of a source. Empty if the source has ended.
class SourceUse {
 public:
  SourceUse() = default;
  explicit SourceUse(std::shared_ptr<ChunkBinding> binding)
      : binding_(std::move(binding)), source_(binding_->enter()) {}
  SourceUse(SourceUse&& other) noexcept
      : binding_(std::move(other.binding_)), source_(std::exchange(other.source_, nullptr)) {}
  SourceUse& operator=(SourceUse&& other) noexcept {
    std::swap(binding_, other.binding_);
    std::swap(source_, other.source_);
    return *this;
  }
  ~SourceUse() {
    if (source_ != nullptr) binding_->leave();
  }

  explicit operator bool() const { return source_ != nullptr; }
  ChunkSource* operator->() const { return source_; }
  ChunkSource* get() const { return source_; }
  const ChunkBinding* binding() const { return binding_.get(); }

 private:
  std::shared_ptr<ChunkBinding> binding_;
  ChunkSource* source_ = nullptr;
};

}  // namespace elixir
