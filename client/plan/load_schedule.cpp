#include "client/plan/load_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace elixir {

LoadSchedule::LoadSchedule(const std::vector<uint32_t>& parts, uint32_t window)
    : window_(std::max(window, 1u)) {
  for (const uint32_t count : parts) {
    ELIXIR_CHECK(count > 0, "position {} has no part", positions_.size());
    positions_.push_back({count, count});
  }
}

std::optional<LoadSchedule::Task> LoadSchedule::next() {
  if (loading_ < handed_out_) return Task{Task::Kind::kLoad, loading_++, 0};
  if (drawing_ == positions_.size() || drawing_ >= first_ + window_) return std::nullopt;
  const Task task{Task::Kind::kDraw, drawing_, part_};
  if (++part_ == positions_[drawing_].parts) {
    part_ = 0;
    ++drawing_;
  }
  return task;
}

void LoadSchedule::done(const Task& task) {
  ELIXIR_CHECK(task.position < positions_.size(), "position {} of {}", task.position,
               positions_.size());
  Position& position = positions_[task.position];
  if (task.kind == Task::Kind::kDraw) {
    ELIXIR_CHECK(position.parts_left > 0, "position {} is drawn already", task.position);
    --position.parts_left;
    return;
  }
  ELIXIR_CHECK(task.position < loading_ && !position.loaded, "position {} is loaded unasked",
               task.position);
  position.loaded = true;
  while (first_ < positions_.size() && positions_[first_].loaded) ++first_;
}

void LoadSchedule::handed_out(uint32_t position) {
  ELIXIR_CHECK(position == handed_out_ && drawn(position), "position {} before its turn", position);
  ++handed_out_;
}

}  // namespace elixir
