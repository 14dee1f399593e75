#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace elixir {

// Decides which chunk's initial values are drawn, handed out to the ranks, or loaded next.
//
// Positions count chunks in the order of loading. Each position passes three stages. Several
// threads draw its parts, in any order. Then one thread hands it out, position after position,
// because ranks do this together. Then any thread loads it. Only the positions of the window [first
// not loaded, + window) are begun. So `window` buffers are enough: position p has buffer p %
// window.
//
// No thread, lock or clock. Not thread-safe.
class LoadSchedule {
 public:
  // parts[p] is the number of parts of position p that are drawn separately, at least 1. window is
  // at least 1.
  LoadSchedule(const std::vector<uint32_t>& parts, uint32_t window);

  struct Task {
    enum class Kind { kDraw, kLoad } kind;
    uint32_t position;
    uint32_t part;  // kDraw
  };
  // Gives the calling thread a task. Empty: there is none until another task is done or a position
  // is handed out. Loads come first, because they free a buffer.
  std::optional<Task> next();
  void done(const Task& task);

  // Whether all parts of the position are drawn, so that it can be handed out.
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
  uint32_t drawing_ = 0, part_ = 0;  // the next part to draw
  uint32_t handed_out_ = 0;          // all before it are
  uint32_t loading_ = 0;             // all before it are loaded, or a thread loads them
};

}  // namespace elixir
