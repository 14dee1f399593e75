#include "client/train/weights.h"

#include <ATen/core/grad_mode.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <thread>

#include "base/check.h"
#include "base/mutex.h"
#include "base/throw_error.h"
#include "client/plan/load_schedule.h"
#include "client/tensors/meta_init.h"
#include "client/train/compute_alone.h"

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
std::vector<ChunkToLoad> chunks_to_load(const RunPlan& plan) {
  const shm::Shape& shape = plan.shape;
  const std::vector<shm::ParameterPlace>& places = plan.chunks.places;
  std::vector<ChunkToLoad> chunks(shape.total_chunks());
  const auto position = [&](uint32_t chunk) {
    return (chunk + shape.n_frozen_chunks) % shape.total_chunks();
  };
  for (uint32_t chunk = 0; chunk < chunks.size(); ++chunk) chunks[position(chunk)].chunk = chunk;
  for (uint32_t i = 0; i < places.size(); ++i) {
    chunks[position(places[i].chunk)].parameters.push_back(i);
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

// Draws, hands out and loads, as LoadSchedule says. The caller's thread hands out; its threads do
// the rest. A failure of any of them ends all, and is thrown by run().
class Loading {
 public:
  Loading(Exchange& exchange, const RunPlan& plan, const std::vector<ModuleParameter>& parameters,
          bool gives)
      : exchange_(exchange),
        plan_(plan),
        parameters_(parameters),
        gives_(gives),
        chunks_(chunks_to_load(plan)),
        buffers_(chunks_in_flight(plan.shape)),
        schedule_(parts_of(chunks_), static_cast<uint32_t>(buffers_.size())) {
    for (std::unique_ptr<float[]>& buffer : buffers_) {  // not touched here: who draws does
      buffer = std::make_unique_for_overwrite<float[]>(plan.shape.gathered_numel());
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
        while (!ready(schedule_.drawn(position))) changed_.wait(lock);
      }
      exchange_.hand_out(chunks_[position].chunk, buffer(position));
      const MutexLock lock(mutex_);
      schedule_.handed_out(position);
      changed_.notify_all();
    }
    MutexLock lock(mutex_);
    while (!ready(schedule_.over())) changed_.wait(lock);
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
      compute_alone();
      const at::NoGradGuard no_grad;
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
    } else if (gives_) {
      draw(chunks_[task.position], task.part, buffer(task.position));
    }
  }

  // The parameter's values, and zeros up to the next one's.
  void draw(const ChunkToLoad& chunk, uint32_t part, float* values) const {
    const uint64_t end = plan_.shape.gathered_numel();
    if (chunk.parameters.empty()) {
      std::fill_n(values, end, 0.0f);
      return;
    }
    const auto place = [&](uint32_t of) -> const shm::ParameterPlace& {
      return plan_.chunks.places[chunk.parameters[of]];
    };
    ELIXIR_CHECK(part < chunk.parameters.size() && place(part).offset + place(part).numel <= end,
                 "part {} of {} lies beyond chunk {}", part, chunk.parameters.size(), chunk.chunk);
    if (part == 0) std::fill_n(values, place(0).offset, 0.0f);
    const at::Tensor source =
        materialise(parameters_[chunk.parameters[part]].tensor).to(at::kFloat).contiguous();
    float* const behind =
        std::copy_n(source.const_data_ptr<float>(), source.numel(), values + place(part).offset);
    const bool last = part + 1 == chunk.parameters.size();
    std::fill(behind, values + (last ? end : place(part + 1).offset), 0.0f);
  }

  Exchange& exchange_;
  const RunPlan& plan_;
  const std::vector<ModuleParameter>& parameters_;
  const bool gives_;
  const std::vector<ChunkToLoad> chunks_;          // by position
  std::vector<std::unique_ptr<float[]>> buffers_;  // a position's is its own from draw to load

  Mutex mutex_;
  CondVar changed_;
  LoadSchedule schedule_ ELIXIR_GUARDED_BY(mutex_);
  std::exception_ptr failure_ ELIXIR_GUARDED_BY(mutex_);
  bool stopping_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void load_weights(Exchange& exchange, const RunPlan& plan,
                  const std::vector<ModuleParameter>& parameters, bool gives, uint32_t threads) {
  // Who draws nothing only waits for elixird, for so many chunks at a time.
  const uint32_t useful = gives ? threads : std::min(threads, kMostChunksInFlight);
  Loading(exchange, plan, parameters, gives).run(std::max(useful, 1u));
  exchange.await_loaded(CollectiveKind::kLoad);
}

namespace {

// Two bytes a value: exact whatever the chunk's type, and finite whatever the bytes.
std::vector<float> as_values(std::span<const std::byte> bytes) {
  std::vector<float> values((bytes.size() + 1) / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    values[i / 2] += std::to_integer<int>(bytes[i]) * (i % 2 == 0 ? 1.0f : 256.0f);
  }
  return values;
}

std::byte byte_of(std::span<const float> values, size_t at) {
  const auto pair = static_cast<uint32_t>(values[at / 2]);
  return static_cast<std::byte>(at % 2 == 0 ? pair & 0xff : pair >> 8);
}

uint64_t kinds_xxh64(const std::vector<MovedTensor>& rest) {
  std::string kinds;
  for (const MovedTensor& item : rest) {
    kinds += fmt::format("{} {} {};", item.name, c10::str(item.values.sizes()),
                         item.values.dtype().name());
  }
  return XXH64(kinds.data(), kinds.size(), 0);
}

}  // namespace

void share_the_rest(Exchange& exchange, const RunPlan& plan, std::vector<MovedTensor>& rest) {
  const bool possible =
      plan.shape.exchange == shm::Exchange::kCollective || plan.shape.n_chunks > 0;
  if (plan.shape.ranks == 1 || !possible) return;
  const at::NoGradGuard no_grad;
  const uint64_t mine = kinds_xxh64(rest);
  uint64_t first = mine;
  std::vector<float> head = as_values(std::as_bytes(std::span(&first, 1)));
  exchange.broadcast(head);
  auto* const to = reinterpret_cast<std::byte*>(&first);
  for (size_t i = 0; i < sizeof first; ++i) to[i] = byte_of(head, i);
  if (first != mine) {
    throw Error(error(Code::kInvalidArgument,
                      "buffers (or parameters that are left out) differ from rank 0's in name, "
                      "type or size: build the same model on every rank"));
  }
  for (MovedTensor& item : rest) {
    if (item.values.numel() == 0) continue;
    item.values = item.values.contiguous().clone();
    auto* const bytes = static_cast<std::byte*>(item.values.mutable_data_ptr());
    const size_t n_bytes = item.values.nbytes();
    std::vector<float> values = as_values({bytes, n_bytes});
    exchange.broadcast(values);
    for (size_t i = 0; i < n_bytes; ++i) bytes[i] = byte_of(values, i);
  }
}

uint64_t masters_xxh64(Exchange& exchange, const RunPlan& plan) {
  std::vector<const shm::ParameterPlace*> places;
  for (const shm::ParameterPlace& place : plan.chunks.places) {
    if (!plan.shape.frozen(place.chunk)) places.push_back(&place);
  }
  std::sort(places.begin(), places.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> hash(XXH64_createState(),
                                                                        &XXH64_freeState);
  XXH64_reset(hash.get(), 0);
  std::vector<float> masters(plan.shape.gathered_numel());
  uint32_t in_hand = UINT32_MAX;  // names of one layer stand together, and so do its parameters
  for (const shm::ParameterPlace* place : places) {
    if (place->chunk != in_hand) exchange.read_masters(place->chunk, masters.data());
    in_hand = place->chunk;
    XXH64_update(hash.get(), masters.data() + place->offset, place->numel * sizeof(float));
  }
  return XXH64_digest(hash.get());
}

}  // namespace elixir
