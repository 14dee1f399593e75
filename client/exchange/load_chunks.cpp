#include "client/exchange/load_chunks.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/mutex.h"
#include "client/plan/load_schedule.h"

namespace elixir {
namespace {

// Of so many chunks a trainer holds FP32 values at a time: while one is taken by elixird, another
// is drawn, and the next one begun. Never of more than half of the chunks, and of one at least.
constexpr uint32_t kMostChunksInFlight = 3;

// A chunk and its parameters, by offset.
struct ChunkToLoad {
  uint32_t chunk = 0;
  std::vector<uint32_t> parameters = {};
};

// In the order of loading: the frozen chunks first, which go through slots of the others.
std::vector<ChunkToLoad> chunks_to_load(const shm::Shape& shape,
                                        const std::vector<shm::ParameterPlace>& places) {
  std::vector<ChunkToLoad> chunks(shape.total_chunks());
  const auto position = [&](uint32_t chunk) {
    return (chunk + shape.n_frozen_chunks) % shape.total_chunks();
  };
  for (uint32_t chunk = 0; chunk < chunks.size(); ++chunk) chunks[position(chunk)].chunk = chunk;
  for (uint32_t i = 0; i < places.size(); ++i) {
    const shm::ChunkRun run = shm::chunks_of(places[i], shape);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      chunks[position(chunk)].parameters.push_back(i);
    }
  }
  for (ChunkToLoad& chunk : chunks) {
    std::sort(chunk.parameters.begin(), chunk.parameters.end(),
              [&](uint32_t a, uint32_t b) { return places[a].offset < places[b].offset; });
  }
  return chunks;
}

uint32_t chunks_in_flight(const shm::Shape& shape) {
  uint32_t most = std::clamp(shape.total_chunks() / 2, 1u, kMostChunksInFlight);
  // Each through a slot of its own.
  if (shape.n_frozen_chunks > 0) most = std::min(most, shape.n_grad_slots());
  return most;
}

std::vector<uint32_t> parts_of(const std::vector<ChunkToLoad>& chunks) {
  std::vector<uint32_t> parts;
  for (const ChunkToLoad& chunk : chunks) {
    parts.push_back(std::max<uint32_t>(1, static_cast<uint32_t>(chunk.parameters.size())));
  }
  return parts;
}

// A parameter longer than a chunk: its values are drawn whole, by whoever comes for the first part,
// and are there until the last one has been taken.
class LongValues {
 public:
  void take(ValueSource& source, uint32_t parameter, const shm::ParameterPlace& place,
            const shm::ParameterPart& part, float* to) {
    const MutexLock lock(mutex_);
    if (left_numel_ == 0) {
      values_ = std::make_unique_for_overwrite<float[]>(place.numel);
      source.draw(parameter, {values_.get(), place.numel});
      left_numel_ = place.numel;
    }
    std::copy_n(values_.get() + part.first, part.numel, to);
    left_numel_ -= part.numel;
    if (left_numel_ == 0) values_.reset();
  }

 private:
  Mutex mutex_;
  std::unique_ptr<float[]> values_ ELIXIR_GUARDED_BY(mutex_);
  uint64_t left_numel_ ELIXIR_GUARDED_BY(mutex_) = 0;  // not taken; 0: not drawn, or all taken
};

// Draws, hands out and loads, as LoadSchedule says. The caller's thread hands out; its threads do
// the rest. A failure of any of them ends all, and is thrown by run().
class Loading {
 public:
  Loading(Exchange& exchange, const shm::Shape& shape,
          const std::vector<shm::ParameterPlace>& places, ValueSource* source)
      : exchange_(exchange),
        shape_(shape),
        values_of_chunk_(shape.gathered_numel()),
        places_(places),
        source_(source),
        chunks_(chunks_to_load(shape, places)),
        buffers_(chunks_in_flight(shape)),
        schedule_(parts_of(chunks_), static_cast<uint32_t>(buffers_.size())) {
    for (uint32_t i = 0; i < places.size(); ++i) {
      if (shm::is_long(places[i], shape)) long_values_[i];
    }
    for (std::unique_ptr<float[]>& buffer : buffers_) {  // not touched here: who draws does
      buffer = std::make_unique_for_overwrite<float[]>(values_of_chunk_);
    }
  }

  ~Loading() {
    stop(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }

  void run(uint32_t threads) {
    for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { help(); });
    for (uint32_t position = 0; position < chunks_.size(); ++position) {
      {
        MutexLock lock(mutex_);
        while (!ready(schedule_.drawn(position))) wait_round(changed_, lock);
      }
      exchange_.hand_out(chunks_[position].chunk, buffer(position));
      const MutexLock lock(mutex_);
      schedule_.handed_out(position);
      changed_.notify_all();
    }
    MutexLock lock(mutex_);
    while (!ready(schedule_.over())) wait_round(changed_, lock);
  }

 private:
  float* buffer(uint32_t position) const { return buffers_[position % buffers_.size()].get(); }

  // The condition of a wait. Throws the failure of a thread.
  bool ready(bool condition) const ELIXIR_REQUIRES(mutex_) {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    return condition;
  }

  void stop(std::exception_ptr failure) {
    const MutexLock lock(mutex_);
    if (failure_ == nullptr) failure_ = std::move(failure);
    stopping_ = true;
    changed_.notify_all();
  }

  // A thread.
  void help() {
    try {
      if (source_ != nullptr) source_->begin_thread();
      while (const std::optional<LoadSchedule::Task> task = take()) {
        work(*task);
        const MutexLock lock(mutex_);
        schedule_.done(*task);
        changed_.notify_all();
      }
    } catch (...) {
      stop(std::current_exception());
    }
  }

  std::optional<LoadSchedule::Task> take() {
    MutexLock lock(mutex_);
    while (!stopping_ && !schedule_.over()) {
      if (std::optional<LoadSchedule::Task> task = schedule_.next()) return task;
      changed_.wait(lock);
    }
    return std::nullopt;
  }

  void work(const LoadSchedule::Task& task) {
    if (task.kind == LoadSchedule::Task::Kind::kLoad) {
      exchange_.load(chunks_[task.position].chunk, buffer(task.position));
    } else if (source_ != nullptr) {
      draw(chunks_[task.position], task.part, buffer(task.position));
    }
  }

  // The parameter's values, and zeros up to the next one's.
  void draw(const ChunkToLoad& chunk, uint32_t part, float* values) {
    if (chunk.parameters.empty()) {
      std::fill_n(values, values_of_chunk_, 0.0f);
      return;
    }
    ELIXIR_CHECK(part < chunk.parameters.size(), "part {} of {} of chunk {}", part,
                 chunk.parameters.size(), chunk.chunk);
    const uint32_t parameter = chunk.parameters[part];
    const shm::ParameterPlace& place = places_[parameter];
    const shm::ParameterPart here = shm::part_in(place, shape_, chunk.chunk);
    const uint64_t begin = here.offset, behind = begin + here.numel;
    const bool last = part + 1 == chunk.parameters.size();
    const uint64_t next = last ? values_of_chunk_ : places_[chunk.parameters[part + 1]].offset;
    ELIXIR_CHECK(behind <= next && next <= values_of_chunk_,
                 "part {} of chunk {} ends at {}, before {} of {}", part, chunk.chunk, behind, next,
                 values_of_chunk_);
    if (part == 0) std::fill_n(values, begin, 0.0f);
    if (shm::is_long(place, shape_)) {
      long_values_.at(parameter).take(*source_, parameter, place, here, values + begin);
    } else {
      source_->draw(parameter, {values + begin, here.numel});
    }
    std::fill(values + behind, values + next, 0.0f);
  }

  Exchange& exchange_;
  const shm::Shape& shape_;
  const uint64_t values_of_chunk_;
  const std::vector<shm::ParameterPlace>& places_;
  ValueSource* const source_;                      // null: others give the values
  const std::vector<ChunkToLoad> chunks_;          // by position
  std::map<uint32_t, LongValues> long_values_;     // by parameter: made before any thread
  std::vector<std::unique_ptr<float[]>> buffers_;  // a position's is its own from draw to load

  Mutex mutex_;
  CondVar changed_;
  LoadSchedule schedule_ ELIXIR_GUARDED_BY(mutex_);
  std::exception_ptr failure_ ELIXIR_GUARDED_BY(mutex_);
  bool stopping_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void load_chunks(Exchange& exchange, const shm::Shape& shape,
                 const std::vector<shm::ParameterPlace>& places, ValueSource* source,
                 uint32_t threads) {
  // Who draws nothing only waits for elixird, for so many chunks at a time.
  const uint32_t useful = source != nullptr ? threads : std::min(threads, kMostChunksInFlight);
  Loading(exchange, shape, places, source).run(std::max(useful, 1u));
}

}  // namespace elixir
