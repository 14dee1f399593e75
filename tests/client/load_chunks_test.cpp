// Loading over an exchange that only keeps what it is given.

#include "client/exchange/load_chunks.h"

#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/client/unasked_exchange.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

constexpr uint64_t kNumel = 256;

class KeepingExchange final : public UnaskedExchange {
 public:
  explicit KeepingExchange(uint32_t chunks) : loaded_(chunks) {}

  size_t block_bytes() const override { return kNumel * sizeof(float); }
  void hand_out(uint32_t chunk, float* values) override {
    handed_out_.push_back(chunk);
    if (handed_out_values_ != 0) std::fill_n(values, kNumel, handed_out_values_);
  }
  void load(uint32_t chunk, const float* values) override {
    if (chunk == fails_at_) throw std::runtime_error("no room");
    loaded_[chunk].assign(values, values + kNumel);
  }

  std::vector<uint32_t> handed_out_;        // the caller's thread alone
  std::vector<std::vector<float>> loaded_;  // by chunk, each by one thread
  float handed_out_values_ = 0;             // what another rank gives
  uint32_t fails_at_ = UINT32_MAX;
};

// Element e of parameter i; each is another.
float value_of(uint32_t parameter, uint64_t element) {
  return static_cast<float>(10'000 * parameter + element + 1);
}

class NumberingSource final : public ValueSource {
 public:
  void begin_thread() override {
    const std::lock_guard lock(mutex_);
    begun_.insert(std::this_thread::get_id());
  }
  void draw(uint32_t parameter, std::span<float> values) override {
    if (parameter == fails_at_) throw std::runtime_error("no values");
    for (uint64_t i = 0; i < values.size(); ++i) values[i] = value_of(parameter, i);
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(begun_.contains(std::this_thread::get_id()));
    EXPECT_TRUE(drawn_.insert(parameter).second) << parameter << " is drawn twice";
  }
  size_t drawn() const { return drawn_.size(); }
  uint32_t fails_at_ = UINT32_MAX;

 private:
  std::mutex mutex_;
  std::set<std::thread::id> begun_;
  std::set<uint32_t> drawn_;
};

shm::Shape shape_of(uint32_t trained, uint32_t frozen, uint32_t parameters) {
  return {.type = ComputeType::kFp32,
          .n_chunks = trained,
          .n_frozen_chunks = frozen,
          .n_parameters = parameters,
          .chunk_numel = kNumel};
}

// Two parameters a chunk with gaps between and behind them, the second one named first.
std::vector<shm::ParameterPlace> places_of(uint32_t chunks) {
  std::vector<shm::ParameterPlace> places;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    places.push_back({"b", chunk, 128, 100});
    places.push_back({"a", chunk, 0, 90});
  }
  return places;
}

// Each chunk has its parameters' values, zeros between them, and comes in its turn.
void expect_loaded(const shm::Shape& shape, const std::vector<shm::ParameterPlace>& places,
                   const std::vector<uint32_t>& order) {
  for (const uint32_t threads : {1u, 2u, 5u}) {
    KeepingExchange exchange(shape.total_chunks());
    NumberingSource source;
    load_chunks(exchange, shape, places, &source, threads);
    EXPECT_EQ(source.drawn(), places.size());
    EXPECT_EQ(exchange.handed_out_, order);
    std::vector<std::vector<float>> expected(shape.total_chunks(), std::vector<float>(kNumel));
    for (uint32_t parameter = 0; parameter < places.size(); ++parameter) {
      const shm::ChunkRun run = shm::chunks_of(places[parameter], shape);
      for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
        const shm::ParameterPart part = shm::part_in(places[parameter], shape, chunk);
        for (uint64_t i = 0; i < part.numel; ++i) {
          expected[chunk][part.offset + i] = value_of(parameter, part.first + i);
        }
      }
    }
    EXPECT_EQ(exchange.loaded_, expected) << threads;
  }
}

// Three chunks have nothing but the long one, two frozen ones another, which are handed out first.
TEST(LoadChunksTest, AParameterLongerThanAChunkIsDrawnOnceAndCutIntoItsChunks) {
  expect_loaded(shape_of(5, 2, 3),
                {{"a", 0, 0, 100},
                 {"long", 1, 0, 2 * kNumel + 50},
                 {"b", 4, 128, 20},
                 {"frozen", 5, 0, kNumel + 1}},
                {5, 6, 0, 1, 2, 3, 4});
}

// The last one has none.
TEST(LoadChunksTest, EveryChunkHasItsParametersAndZerosBetweenThem) {
  expect_loaded(shape_of(8, 0, 14), places_of(7), {0, 1, 2, 3, 4, 5, 6, 7});
}

TEST(LoadChunksTest, ARankWhoseValuesDoNotCountLoadsWhatItIsHanded) {
  KeepingExchange exchange(6);
  exchange.handed_out_values_ = 7;
  load_chunks(exchange, shape_of(6, 0, 12), places_of(6), nullptr, 4);
  EXPECT_THAT(exchange.loaded_, Each(std::vector<float>(kNumel, 7.0f)));
}

TEST(LoadChunksTest, AFailureOfAnyThreadEndsTheCall) {
  KeepingExchange exchange(20);
  NumberingSource source;
  source.fails_at_ = 9;
  EXPECT_THROW(load_chunks(exchange, shape_of(20, 0, 40), places_of(20), &source, 3),
               std::runtime_error);
  KeepingExchange full(20);
  full.fails_at_ = 4;
  NumberingSource whole;
  EXPECT_THROW(load_chunks(full, shape_of(20, 0, 40), places_of(20), &whole, 3),
               std::runtime_error);
  EXPECT_THAT(whole.drawn(), Le(16u)) << "of seven chunks at most, two parameters each";
}

// Else one would be written over the other.
TEST(LoadChunksDeathTest, ParametersThatOverlapAreABug) {
  KeepingExchange exchange(1);
  NumberingSource source;
  const std::vector<shm::ParameterPlace> places = {{"a", 0, 0, 100}, {"b", 0, 64, 10}};
  EXPECT_DEATH(load_chunks(exchange, shape_of(1, 0, 2), places, &source, 1),
               "ends at 100, before 64");
}

}  // namespace
}  // namespace elixir::test
