#include "shm/shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/compute_type_names.h"

namespace elixir::shm {
namespace {

constexpr ComputeType kTypes[] = {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32};

TEST(ShapeTest, ShardsCoverEachChunkOnce) {
  for (uint32_t ranks = 1; ranks <= kMaxLocalRanks; ++ranks) {
    for (uint64_t chunk_numel : {128ull, 256ull, 1024ull, 3968ull, 65536ull, 999936ull}) {
      const Shape shape{
          .type = ComputeType::kBf16, .ranks = ranks, .n_chunks = 3, .chunk_numel = chunk_numel};
      ASSERT_TRUE(check_shape(shape).ok());
      uint64_t next = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(shape.shard_begin(rank), next) << ranks << " ranks, chunk of " << chunk_numel;
        ASSERT_GE(shape.shard_end(rank), shape.shard_begin(rank));
        ASSERT_LE(shape.shard_end(rank) - shape.shard_begin(rank), shape.shard_numel());
        ASSERT_EQ(shape.shard_begin(rank) % kShardAlignNumel, 0u);
        next = shape.shard_end(rank);
      }
      ASSERT_EQ(next, chunk_numel);
    }
  }
}

// Loads that are under way at the same time go through different slots.
TEST(ShapeTest, ChunksInARowAreLoadedThroughDifferentSlots) {
  for (const uint32_t on_cpu : {0u, 1u, 2u, 3u, 7u}) {
    for (const uint32_t frozen : {0u, 1u, 2u, 5u, 9u}) {
      Shape shape{.type = ComputeType::kBf16, .ranks = 1, .n_chunks = on_cpu, .chunk_numel = 1024};
      shape.n_gpu_chunks = 2;
      shape.n_frozen_chunks = frozen;
      std::vector<uint32_t> slots;  // in the order of loading
      for (uint32_t i = 0; i < frozen; ++i) slots.push_back(shape.load_slot(on_cpu + 2 + i));
      for (uint32_t chunk = 0; chunk < on_cpu; ++chunk) slots.push_back(shape.load_slot(chunk));
      for (size_t i = 0; i < slots.size(); ++i) {
        EXPECT_LT(slots[i], shape.n_grad_slots());
        for (size_t j = i + 1; j < std::min<size_t>(slots.size(), i + shape.n_grad_slots()); ++j) {
          EXPECT_NE(slots[i], slots[j]) << on_cpu << " " << frozen << ": " << i << " " << j;
        }
      }
    }
  }
}

TEST(ShapeTest, SectionsFollowOneAnotherWithoutOverlap) {
  for (ComputeType type : kTypes) {
    const Shape shape{.type = type, .ranks = 3, .n_chunks = 5, .chunk_numel = 128 * 77};
    EXPECT_GE(shape.step_results_offset(), shape.step_records_offset() + 8 * sizeof(StepRecord));
    EXPECT_GE(shape.update_results_offset(), shape.step_results_offset() + 8 * sizeof(StepResult));
    EXPECT_GE(shape.grad_records_offset(),
              shape.update_results_offset() + 8 * sizeof(UpdateResult));
    EXPECT_GE(shape.chunk_records_offset(), shape.grad_records_offset() + 5 * sizeof(GradRecord));
    EXPECT_EQ(shape.grad_records_offset() % kCacheLine, 0u);
    EXPECT_EQ(shape.chunk_records_offset() % kCacheLine, 0u);
    EXPECT_GE(shape.control_bytes(), shape.chunk_records_offset() + 5 * sizeof(ChunkRecord));
    EXPECT_GE(shape.master_offset(), shape.redo_offset(kMaxWorkers - 1) + kRedoRecordBytes);
    EXPECT_GE(shape.moment_offset(0),
              shape.master_offset() + shape.states_numel() * master_bytes(type));
    EXPECT_GE(shape.moment_offset(1), shape.moment_offset(0) + shape.states_numel() * 4);
    EXPECT_GE(shape.state_bytes(), shape.moment_offset(1) + shape.states_numel() * 4);
    EXPECT_GE(shape.grads_bytes(), shape.grad_slot_offset(4) + shape.chunk_bytes());
    EXPECT_GE(shape.params_bytes(), shape.param_slot_offset(4) + shape.shard_bytes());
    for (uint64_t offset : {shape.moment_offset(0), shape.moment_offset(1)}) {
      EXPECT_EQ(offset % kSectionAlignBytes, 0u);
    }
  }
}

// The records and slots of swing chunks beside those of the others, and memory for them alone.
TEST(ShapeTest, SwingChunksLieInMemoryOfTheirOwn) {
  for (ComputeType type : kTypes) {
    Shape shape{.type = type,
                .exchange = Exchange::kCollective,
                .ranks = 2,
                .n_chunks = 5,
                .n_gpu_chunks = 2,
                .n_frozen_chunks = 3,
                .n_parameters = 9,
                .n_spare_slots = 1,
                .chunk_numel = 128 * 77};
    const uint64_t params_bytes = shape.params_bytes();
    EXPECT_EQ(shape.swing_bytes(), 0u);
    shape.n_swing_chunks = 3;
    shape.n_swing_lanes = 2;
    EXPECT_TRUE(check_shape(shape).ok());
    EXPECT_LE(shape.params_bytes(), params_bytes);  // whole pages
    EXPECT_LT(shape.states_numel(), 6 * shape.shard_numel());
    EXPECT_GE(shape.swing_records_offset(), shape.chunk_records_offset() + 5 * sizeof(ChunkRecord));
    EXPECT_GE(shape.swing_parameters_offset(),
              shape.swing_records_offset() + 3 * sizeof(SwingRecord));
    EXPECT_GE(shape.grad_groups_offset(0),
              shape.swing_parameters_offset() + 9 * sizeof(SwingParameter));
    EXPECT_EQ(shape.swing_bytes(), 5 * shape.swing_slot_bytes());
    EXPECT_GE(shape.swing_slot_bytes(), shape.image_bytes());
    std::vector<uint32_t> slots;  // each once
    for (const uint32_t chunk : {0u, 1u, 2u, 3u, 4u, 7u, 8u, 9u}) {
      slots.push_back(shape.first_slot(chunk));
      EXPECT_EQ(shape.in_swing_memory(slots.back()), chunk >= 2 && chunk < 5) << chunk;
    }
    for (const uint32_t lane : {0u, 1u}) slots.push_back(shape.first_swing_spare(lane));
    slots.push_back(2);  // the spare one of early updates
    std::sort(slots.begin(), slots.end());
    for (uint32_t i = 0; i < slots.size(); ++i) EXPECT_EQ(slots[i], i);
    EXPECT_EQ(shape.n_slots(), slots.size());
    for (uint32_t chunk = 2; chunk < 5; ++chunk)
      EXPECT_EQ(shape.swing_lane(chunk), (chunk - 2) % 2);
  }
}

// 12 + 2N, 14 + 2N and 12 + 4N bytes a parameter, when chunks are large.
TEST(ShapeTest, HostBytesAParameterAreTheDesigns) {
  for (uint32_t ranks : {1u, 2u, 4u, 8u, 64u}) {
    for (ComputeType type : kTypes) {
      const Shape shape{.type = type, .ranks = ranks, .n_chunks = 64, .chunk_numel = 64ull << 20};
      const double job_bytes = static_cast<double>(shape.session_bytes()) * ranks;
      const double per_parameter = job_bytes / (64.0 * (64ull << 20));
      const double base = type == ComputeType::kFp16 ? 14 : 12;
      const double expected = base + static_cast<double>(element_bytes(type)) * ranks;
      EXPECT_NEAR(per_parameter, expected, 0.02) << compute_type_name(type) << " " << ranks;
    }
  }
}

TEST(ShapeTest, SumsAreFp32AndNotAmongWhatIsReserved) {
  const Shape shape{.type = ComputeType::kBf16, .ranks = 2, .n_chunks = 3, .chunk_numel = 1280};
  EXPECT_GE(shape.sums_bytes(), shape.states_numel() * sizeof(float));
  EXPECT_EQ(shape.sums_bytes() % kSectionAlignBytes, 0u);
  EXPECT_EQ(shape.session_bytes(), shape.control_bytes() + shape.grads_bytes() +
                                       shape.params_bytes() + shape.state_bytes());
}

TEST(ShapeTest, LimitsAreRefusedByCode) {
  const Shape good{.type = ComputeType::kFp32, .ranks = 1, .n_chunks = 1, .chunk_numel = 128};
  EXPECT_TRUE(check_shape(good).ok());
  const auto code_with = [&good](auto change) {
    Shape shape = good;
    change(shape);
    return check_shape(shape).code();
  };
  EXPECT_EQ(code_with([](Shape& s) { s.type = static_cast<ComputeType>(3); }), Code::kProtocol);
  EXPECT_EQ(code_with([](Shape& s) { s.ranks = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) { s.ranks = kMaxLocalRanks + 1; }), Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) {
              s.exchange = Exchange::kCollective;
              s.ranks = kMaxRanks;
            }),
            Code::kOk);
  EXPECT_EQ(code_with([](Shape& s) {
              s.exchange = Exchange::kCollective;
              s.ranks = kMaxRanks + 1;
            }),
            Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) { s.exchange = static_cast<Exchange>(2); }), Code::kProtocol);
  EXPECT_EQ(code_with([](Shape& s) { std::swap(s.n_chunks, s.n_gpu_chunks); }), Code::kOk);
  EXPECT_EQ(code_with([](Shape& s) { s.n_gpu_chunks = kMaxChunks; }), Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) { s.n_chunks = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) { s.n_chunks = kMaxChunks + 1; }), Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) { s.chunk_numel = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) { s.chunk_numel = 127; }), Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) { s.chunk_numel = kMaxChunkNumel + 128; }),
            Code::kInvalidArgument);
  EXPECT_EQ(code_with([](Shape& s) {
              s.chunk_numel = kMaxChunkNumel;
              s.n_chunks = 1u << 9;
            }),
            Code::kResourceExhausted);
}

// A rank of the collective exchange holds its shard of everything, gradients included.
TEST(ShapeTest, TheCollectiveExchangeTakes14BytesAParameterInBf16) {
  Shape shape{.type = ComputeType::kBf16,
              .exchange = Exchange::kCollective,
              .ranks = 8,
              .n_chunks = 64,
              .chunk_numel = 64ull << 20};
  const double job_bytes = static_cast<double>(shape.session_bytes()) * 8;
  EXPECT_NEAR(job_bytes / (64.0 * (64ull << 20)), 14, 0.02);
  EXPECT_EQ(shape.gathered_numel(), shape.chunk_numel);
  shape.chunk_numel = 128;  // less than a shard a rank
  EXPECT_EQ(shape.gathered_numel(), 8 * kShardAlignNumel);
  EXPECT_EQ(shape.shard_begin(5), shape.shard_end(5));
}

TEST(ShapeTest, RanksOfTheHostExchangeKeepNoStatesOnTheGpu) {
  Shape shape{.type = ComputeType::kFp32,
              .exchange = Exchange::kHost,
              .ranks = 2,
              .n_chunks = 3,
              .n_gpu_chunks = 2,
              .chunk_numel = 1280};
  EXPECT_EQ(check_shape(shape).code(), Code::kInvalidArgument);
  shape.exchange = Exchange::kCollective;
  EXPECT_TRUE(check_shape(shape).ok());
  shape.exchange = Exchange::kHost;
  shape.ranks = 1;
  EXPECT_TRUE(check_shape(shape).ok());
}

// What check_shape admits can be computed with: the largest of each kind, in 128 bits.
TEST(ShapeTest, NothingAdmittedOverflows) {
  for (uint32_t ranks : {1u, 63u, kMaxLocalRanks}) {
    for (const auto& [n_chunks, chunk_numel] :
         {std::pair<uint32_t, uint64_t>{1u << 8, kMaxChunkNumel}, {kMaxChunks, 1ull << 24}}) {
      const Shape shape{.type = ComputeType::kFp32,
                        .ranks = ranks,
                        .n_chunks = n_chunks,
                        .chunk_numel = chunk_numel};
      ASSERT_TRUE(check_shape(shape).ok());
      using Wide = unsigned __int128;
      const Wide numel = Wide{n_chunks} * shape.shard_numel();
      EXPECT_EQ(Wide{shape.states_numel()}, numel);
      EXPECT_GE(Wide{shape.state_bytes()}, numel * 8);
      EXPECT_LE(Wide{shape.session_bytes()}, Wide{n_chunks} * chunk_numel * 16 + (Wide{1} << 30));
    }
  }
}

}  // namespace
}  // namespace elixir::shm
