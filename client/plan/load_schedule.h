#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace elixir {

// When the initial values of which chunk are drawn, handed out to the ranks and loaded.
//
// Positions count chunks in the order of loading. Each position passes three stages: its parts are
// drawn (by several threads, in any order), it is handed out (by one thread, position after
// position: ranks do it together), it is loaded (by any thread). Only the positions of a window
// [first not loaded, + window) are begun, so that as many buffers are enough: position p has buffer
// p % window.
//
// No thread, lock or clock. Not thread-safe.
class LoadSchedule {
 public:
  // parts[p]: what of position p is drawn by itself, at least one. window: at least 1.
  LoadSchedule(const std::vector<uint32_t>& parts, uint32_t window);

  struct Task {
    enum class Kind { kDraw, kLoad } kind;
    uint32_t position;
    uint32_t part;  // kDraw
  };
  // What a thread may do now; it is then that thread's. Nothing: until another task is done, or a
  // position handed out. Loads come first, since they free a buffer.
  std::optional<Task> next();
  void done(const Task& task);

  // Whether the position can be handed out.
  bool drawn(uint32_t position) const { return positions_[position].parts_left == 0; }
  // REQUIRES: drawn.
  void handed_out(uint32_t position);

  uint32_t positions() const { return static_cast<uint32_t>(positions_.size()); }
  bool over() const { return first_ == positions_.size(); }

 private:
  struct Position {
    uint32_t parts, parts_left;
    bool loaded = false;
  };
  const uint32_t window_;
  std::vector<Position> positions_;
  uint32_t first_ = 0;               // all before it are loaded
  uint32_t drawing_ = 0, part_ = 0;  // what is drawn next
  uint32_t handed_out_ = 0;          // all before it are
  uint32_t loading_ = 0;             // all before it are loaded or in a thread's hands
};

}  // namespace elixir
