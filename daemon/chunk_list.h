#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace elixir::daemon {

// An ordered list of chunks, each at most once. A chunk enters at the end, and leaves from any
// place, in constant time. Allocates only at construction. Not thread-safe.
class ChunkList {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit ChunkList(uint32_t n_chunks) : links_(n_chunks + 1) { clear(); }

  uint32_t size() const { return size_; }
  uint32_t first() const { return chunk_at(links_[end()].behind); }
  uint32_t last() const { return chunk_at(links_[end()].before); }
  uint32_t behind(uint32_t chunk) const { return chunk_at(links_[chunk].behind); }

  // REQUIRES: it is not in the list.
  void push_back(uint32_t chunk) {
    ELIXIR_CHECK(chunk < end() && links_[chunk].before == kNone, "chunk {} is here", chunk);
    links_[chunk] = {links_[end()].before, end()};
    links_[links_[chunk].before].behind = chunk;
    links_[end()].before = chunk;
    ++size_;
  }
  // REQUIRES: it is in the list.
  void remove(uint32_t chunk) {
    ELIXIR_CHECK(chunk < end() && links_[chunk].before != kNone, "chunk {} is not here", chunk);
    links_[links_[chunk].before].behind = links_[chunk].behind;
    links_[links_[chunk].behind].before = links_[chunk].before;
    links_[chunk] = {};
    --size_;
  }
  void clear() {
    links_.assign(links_.size(), {});
    links_[end()] = {end(), end()};
    size_ = 0;
  }

  bool operator==(const ChunkList&) const = default;

 private:
  struct Links {
    uint32_t before = kNone, behind = kNone;
    bool operator==(const Links&) const = default;
  };
  // The place before the first and behind the last chunk; the list is a ring.
  uint32_t end() const { return static_cast<uint32_t>(links_.size()) - 1; }
  uint32_t chunk_at(uint32_t place) const { return place == end() ? kNone : place; }

  std::vector<Links> links_;
  uint32_t size_ = 0;
};

}  // namespace elixir::daemon
