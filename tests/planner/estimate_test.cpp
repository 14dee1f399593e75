#include "planner/estimate/estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>

#include "planner/estimate/zero_arithmetic.h"

namespace elixir::planner {
namespace {

constexpr double kBillion = 1e9;
constexpr uint64_t kGiB = uint64_t{1} << 30;

double gpu_gb(StateStrategy strategy, double params, uint32_t gpus) {
  const EstimateRequest request{
      .params = static_cast<uint64_t>(params), .gpus = gpus, .gpus_per_node = 8};
  return static_cast<double>(state_bytes(strategy, request).gpu()) / kBillion;
}

struct Table1Row {
  uint32_t dp;
  std::string cells[3][3];  // as printed: 7.5 B, 128 B, 1 T; P_os, P_os+g, P_os+g+p
};

// ZeRO, arXiv 1910.02054, table 1, GB (1e9 bytes) a GPU.
const Table1Row kTable1[] = {
    {1, {{"120", "120", "120"}, {"2048", "2048", "2048"}, {"16000", "16000", "16000"}}},
    {4, {{"52.5", "41.3", "30"}, {"896", "704", "512"}, {"7000", "5500", "4000"}}},
    {16, {{"35.6", "21.6", "7.5"}, {"608", "368", "128"}, {"4750", "2875", "1000"}}},
    {64, {{"31.4", "16.6", "1.88"}, {"536", "284", "32"}, {"4187", "2218", "250"}}},
    {256, {{"30.4", "15.4", "0.47"}, {"518", "263", "8"}, {"4046", "2054", "62.5"}}},
    {1024, {{"30.1", "15.1", "0.12"}, {"513", "257", "2"}, {"4011", "2013", "15.6"}}},
};

int printed_digits(const std::string& cell) {
  const size_t point = cell.find('.');
  return point == std::string::npos ? 0 : static_cast<int>(cell.size() - point - 1);
}

// The column of 7.5 B is rounded, half up (41.25 is printed 41.3), those of 128 B and 1 T are cut
// off: 513.5, 257.75, 4187.5, 2218.75, 4046.9, 2054.7, 4011.7, 2013.7 are printed 513, 257, 4187,
// 2218, 4046, 2054, 4011, 2013. With that rule every cell is the formula's to the last digit.
TEST(ZeroTable1, EveryCellAtItsPrintedPrecision) {
  constexpr double kModels[] = {7.5e9, 128e9, 1e12};
  constexpr StateStrategy kStages[] = {StateStrategy::kZero1, StateStrategy::kZero2,
                                       StateStrategy::kZero3};
  int cells = 0;
  for (const Table1Row& row : kTable1) {
    for (int model = 0; model < 3; ++model) {
      for (int stage = 0; stage < 3; ++stage) {
        const std::string& cell = row.cells[model][stage];
        const double unit = std::pow(10, printed_digits(cell));
        const double gb = gpu_gb(kStages[stage], kModels[model], row.dp);
        // What is added: far less than any digit, more than the rounding up of M / N.
        const double half = model == 0 ? 0.5 : 1e-6;
        EXPECT_EQ(std::floor(gb * unit + half), std::round(std::stod(cell) * unit))
            << cell << " printed, " << gb << " computed: " << kModels[model] << " parameters, DP "
            << row.dp << ", stage " << stage + 1;
        ++cells;
      }
    }
  }
  EXPECT_EQ(cells, 54);
}

TEST(ZeroTable1, DdpIsSixteenBytesOnAnyNumberOfGpus) {
  for (uint32_t gpus : {1u, 7u, 64u, 1024u}) {
    EXPECT_DOUBLE_EQ(gpu_gb(StateStrategy::kDdp, 7.5e9, gpus), 120);
  }
}

struct Table2Row {
  uint32_t mp;
  double billions[4];  // as printed: baseline, P_os, P_os+g, P_os+g+p; 0.5 T is 500
};

// ZeRO, table 2, "Max Theoretical Model Size", 32 GB GPUs, DP 64.
constexpr Table2Row kTable2[] = {
    {1, {2, 7.6, 14.4, 128}},     {2, {4, 15.2, 28.8, 256}},      {4, {8, 30.4, 57.6, 500}},
    {8, {16, 60.8, 115.2, 1000}}, {16, {32, 121.6, 230.4, 2000}},
};

// The printed cells are those of MP 1, to one decimal (7.642 -> 7.6, 14.42 -> 14.4), times MP, and
// from 500 B on in T to one digit (512 B -> 0.5 T). The formula itself gives, unrounded, for P_os
// 15.28, 30.57, 61.13, 122.3 where 15.2, 30.4, 60.8, 121.6 are printed, and for P_os+g 28.85,
// 57.69, 115.4, 230.8 where 28.8, 57.6, 115.2, 230.4 are.
TEST(ZeroTable2, EveryTheoreticalCell) {
  constexpr StateStrategy kColumns[] = {StateStrategy::kDdp, StateStrategy::kZero1,
                                        StateStrategy::kZero2, StateStrategy::kZero3};
  constexpr uint64_t kGpuBytes = 32'000'000'000;
  const auto billions = [&](StateStrategy strategy, uint32_t mp) {
    constexpr uint64_t kParams = 64'000'000;
    const uint64_t bytes =
        state_bytes(strategy, {.params = kParams, .gpus = 64, .gpus_per_node = 8}).gpu();
    return static_cast<double>(kGpuBytes * mp) * kParams / static_cast<double>(bytes) / kBillion;
  };
  for (const Table2Row& row : kTable2) {
    for (int column = 0; column < 4; ++column) {
      const double one = billions(kColumns[column], 1);
      const double exact = billions(kColumns[column], row.mp);
      EXPECT_NEAR(exact, row.mp * one, 1e-6) << "linear in MP";
      double printed = row.mp * std::round(10 * one) / 10;
      if (exact > 500) printed = std::round(printed / 100) * 100;
      if (exact > 1000) printed = std::round(printed / 1000) * 1000;
      EXPECT_DOUBLE_EQ(printed, row.billions[column])
          << "MP " << row.mp << ", column " << column << ": " << exact;
    }
  }
}

// The same table's first row, by its formulas. The activations are those of the paper's section 3.2
// (1.5 B, 32 sequences of 1 K: "about 60 GB") and 6.1 (100 B: 125 layers of width 8192, 32 x 1024
// tokens, 16 GPUs: 33.5e9 elements, which the paper calls 33 GB, and "about 2 GB" of each GPU).
TEST(ZeroArithmetic, IsThatOfThePaper) {
  const ZeroArithmetic states = zero_arithmetic({.gpus = 64, .gpu_memory_bytes = 32'000'000'000});
  for (int column = 0; column < 4; ++column) {
    const double exact = static_cast<double>(states.largest_params[static_cast<size_t>(column)]);
    EXPECT_NEAR(exact / kBillion, kTable2[0].billions[column], 0.05) << column;
  }
  EXPECT_EQ(states.activation_bytes, 0U);
  const ZeroArithmetic gpt2 = zero_arithmetic({.batch = 32, .seq = 1024, .shape = {1600, 48}});
  EXPECT_NEAR(static_cast<double>(gpt2.activation_bytes), 60e9, 1e9);
  const ZeroArithmetic large =
      zero_arithmetic({.gpus = 16, .batch = 32, .seq = 1024, .shape = {8192, 125}});
  EXPECT_NEAR(static_cast<double>(large.checkpoint_bytes) / 2, 33.5e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(large.p_a_bytes) / 2, 2.1e9, 0.1e9);
  EXPECT_EQ(large.largest_params[0], 0U);
}

TEST(ZeroArithmetic, IsSaidWithItsSource) {
  const ZeroArithmetic zero = zero_arithmetic({.gpus = 64,
                                               .gpu_memory_bytes = 32'000'000'000,
                                               .batch = 8,
                                               .seq = 1024,
                                               .shape = {768, 12}});
  std::string text = to_text(zero, uint64_t{1} << 30);
  std::replace(text.begin(), text.end(), '\n', ' ');
  for (const char* part : {"arXiv 1910.02054", "ddp 2 B", "zero3 128 B", "P_a+cpu none",
                           "tensor parallelism", "profile counts 1.00 GiB"}) {
    EXPECT_NE(text.find(part), text.npos) << part << text;
  }
  EXPECT_EQ(to_text(ZeroArithmetic(), 0), "");
  EXPECT_NE(to_json(ZeroArithmetic()).find("\"activation_bytes\":null"), std::string::npos);
}

// Elixir, arXiv 2212.05339 v2, table 1: L_c = 2, L_os F_os = 12.
TEST(Estimate, OffloadRows) {
  constexpr uint64_t kParams = 1'000'000'000;
  const EstimateRequest request{
      .params = kParams, .largest_param = 1'000'000, .gpus = 16, .gpus_per_node = 8};
  const StateBytes zero2 = state_bytes(StateStrategy::kZero2Offload, request);
  EXPECT_EQ(zero2.gpu(), 2 * kParams);
  EXPECT_EQ(zero2.host(), 14 * kParams / 2);  // half of the shards on each of two nodes
  EXPECT_EQ(zero2.host_params, 0u);
  const StateBytes zero3 = state_bytes(StateStrategy::kZero3Offload, request);
  EXPECT_EQ(zero3.gpu(), 2u * 1'000'000);  // the parameter that is gathered: epsilon
  EXPECT_EQ(zero3.host(), 16 * kParams / 2);
  EXPECT_EQ(
      state_bytes(StateStrategy::kZero3Offload, {.params = kParams, .gpus = 64, .gpus_per_node = 8})
          .gpu(),
      0u);
  for (StateStrategy strategy :
       {StateStrategy::kDdp, StateStrategy::kZero1, StateStrategy::kZero2, StateStrategy::kZero3}) {
    EXPECT_EQ(state_bytes(strategy, request).host(), 0u);
  }
}

TEST(Estimate, Fp32HasNoSecondMaster) {
  const EstimateRequest request{
      .params = 1000, .gpus = 1, .gpus_per_node = 1, .type = ComputeType::kFp32};
  const StateBytes ddp = state_bytes(StateStrategy::kDdp, request);
  EXPECT_EQ(ddp.gpu_params, 4000u);
  EXPECT_EQ(ddp.gpu_grads, 4000u);
  EXPECT_EQ(ddp.gpu_states, 8000u);
}

struct ElixirCase {
  ComputeType type;
  uint64_t element, host_one_rank, host_states;
};

// Host bytes a parameter of a node's share: BF16 14, FP16 and FP32 16.
TEST(Estimate, ElixirByGpus) {
  constexpr uint64_t kParams = 1'000'000;
  constexpr uint64_t kLargest = 128 * 100;  // as chunks are aligned
  for (const ElixirCase& c :
       {ElixirCase{ComputeType::kBf16, 2, 14, 10}, ElixirCase{ComputeType::kFp16, 2, 16, 12},
        ElixirCase{ComputeType::kFp32, 4, 16, 8}}) {
    EstimateRequest request{.params = kParams,
                            .largest_param = kLargest,
                            .gpus = 1,
                            .gpus_per_node = 8,
                            .type = c.type};
    StateBytes bytes = state_bytes(StateStrategy::kElixir, request);
    EXPECT_EQ(bytes.host(), c.host_one_rank * kParams);
    EXPECT_EQ(bytes.host_states, c.host_states * kParams);
    EXPECT_EQ(bytes.gpu(), 4 * c.element * kLargest);
    EXPECT_EQ(bytes.gpu_grad_blocks, kGradBlocks * c.element * kLargest);

    request.gpus = 4;
    bytes = state_bytes(StateStrategy::kElixir, request);
    EXPECT_EQ(estimated_exchange(request), Exchange::kCollective);
    EXPECT_EQ(bytes.host(), c.host_one_rank * kParams);
    EXPECT_EQ(bytes.gpu(), 4 * c.element * kLargest);

    // What a host lacks is on its GPUs, with gradients, whatever those hold.
    request.host_memory_bytes = static_cast<uint64_t>(bytes.host() / kHostShare / 2);
    bytes = state_bytes(StateStrategy::kElixir, request);
    EXPECT_NEAR(static_cast<double>(bytes.host()), 0.5 * c.host_one_rank * kParams, 100);
    EXPECT_NEAR(static_cast<double>(bytes.gpu_states), 0.5 * c.host_one_rank * kParams / 4, 100);

    request.gpus = 16;
    request.host_memory_bytes.reset();
    EXPECT_EQ(state_bytes(StateStrategy::kElixir, request).host(), c.host_one_rank * kParams / 2);
  }
}

TEST(Estimate, ElixirsChunkIsAligned) {
  const EstimateRequest request{
      .params = 1000, .largest_param = 129, .gpus = 1, .gpus_per_node = 1};
  EXPECT_EQ(state_bytes(StateStrategy::kElixir, request).gpu_rcache, 2u * 2 * 256);
}

// GPT-3's largest is its embedding, 50257 rows of 12288: the assumption is within 5 % of it. No
// parameter is larger than its model.
TEST(Estimate, AssumedLargestParameter) {
  const double gpt3 = static_cast<double>(assumed_largest_param(174'604'468'224));
  EXPECT_NEAR(gpt3 / (12288.0 * 50257), 1, 0.05);
  EXPECT_EQ(assumed_largest_param(1), 1u);
  for (double params = 1; params <= 1e15; params *= 3) {
    const auto whole = static_cast<uint64_t>(params);
    EXPECT_LE(assumed_largest_param(whole), whole);
    EXPECT_GT(assumed_largest_param(whole), 0u);
  }
}

// The sums of the largest request that is admitted do not wrap.
TEST(Estimate, LargestRequest) {
  for (uint32_t gpus : {1u, kMostGpusPerNode, kMostGpus}) {
    const EstimateRequest request{.params = kMaxParams,
                                  .gpus = gpus,
                                  .gpus_per_node = kMostGpusPerNode,
                                  .type = ComputeType::kFp32};
    ASSERT_TRUE(check_request(request).ok());
    const double share = std::min(1.0, static_cast<double>(kMostGpusPerNode) / gpus);
    for (StateStrategy strategy : kStateStrategies) {
      const StateBytes bytes = state_bytes(strategy, request);
      const uint32_t grads = gpus <= kMostGpusPerNode ? gpus : 1;
      const double most = 1e15 * (strategy == StateStrategy::kElixir ? 12 + 4.0 * grads : 16);
      EXPECT_LE(static_cast<double>(bytes.gpu()), 1e15 * 16 * 1.001) << strategy_name(strategy);
      EXPECT_LE(static_cast<double>(bytes.host()), most * share * 1.001)
          << strategy_name(strategy) << " " << gpus;
      EXPECT_GT(bytes.gpu() + bytes.host(), 1'000'000'000u);
    }
  }
}

TEST(Estimate, RequestsThatAreRefused) {
  const EstimateRequest good{.params = 1, .gpus = 1, .gpus_per_node = 1};
  EXPECT_TRUE(check_request(good).ok());
  const auto refused = [&](auto change) {
    EstimateRequest request = good;
    change(request);
    return check_request(request).code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](EstimateRequest& r) { r.params = 0; }));
  EXPECT_TRUE(refused([](EstimateRequest& r) { r.params = kMaxParams + 1; }));
  EXPECT_TRUE(refused([](EstimateRequest& r) { r.largest_param = 2; }));
  EXPECT_TRUE(refused([](EstimateRequest& r) { r.gpus = 0; }));
  EXPECT_TRUE(refused([](EstimateRequest& r) { r.gpus = kMostGpus + 1; }));
  EXPECT_TRUE(refused([](EstimateRequest& r) { r.gpus_per_node = 0; }));
  EXPECT_TRUE(refused([](EstimateRequest& r) { r.gpus_per_node = kMostGpusPerNode + 1; }));
}

// Asked where room is known: how often it was.
struct Asked {
  uint64_t value = 0;
  int times = 0;
};
Asked largest(const std::function<double(uint64_t)>& room, uint64_t most = kMaxBatch) {
  Asked asked;
  const Result<uint64_t> found = largest_that_fits(
      [&](uint64_t count) -> Result<double> {
        ++asked.times;
        EXPECT_GE(count, 1u);
        EXPECT_LE(count, most);
        return room(count);
      },
      most);
  EXPECT_TRUE(found.ok());
  asked.value = found.ok() ? *found : UINT64_MAX;
  return asked;
}

TEST(LargestThatFits, OnALine) {
  for (const uint64_t end : {0u, 1u, 2u, 7u, 8u, 100u, 12345u}) {
    const Asked asked = largest([&](uint64_t count) {
      return 3.0 * (static_cast<double>(end) - static_cast<double>(count));
    });
    EXPECT_EQ(asked.value, end);
    EXPECT_LE(asked.times, 8) << end;
  }
}

// As the greatest of several lines: constant at first, then of logits, then of a step in a jump.
TEST(LargestThatFits, OnLinesThatGetSteeper) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    const double flat = static_cast<double>(random() % 100), a = 0.001 * (random() % 1000);
    const double b = a + 0.01 * (random() % 1000), from = static_cast<double>(random() % 5000);
    const double have = static_cast<double>(random() % 200'000);
    const double jump = static_cast<double>(random() % 2);
    const auto room = [&](uint64_t count) {
      const auto n = static_cast<double>(count);
      return have - std::max({flat, a * n, a * from + b * (n - from) + jump});
    };
    const Asked asked = largest(room);
    if (asked.value > 0) {
      EXPECT_GE(room(asked.value), 0);
    }
    if (asked.value < kMaxBatch) {
      EXPECT_LT(room(asked.value + 1), 0);
    }
    EXPECT_LE(asked.times, 45);
  }
}

TEST(LargestThatFits, NothingAndEverything) {
  EXPECT_EQ(largest([](uint64_t) { return -1.0; }).value, 0u);
  const Asked all = largest([](uint64_t) { return 0.0; });
  EXPECT_EQ(all.value, kMaxBatch);
  EXPECT_LE(all.times, 6);
  EXPECT_EQ(largest([](uint64_t) { return 5.0; }, 1).value, 1u);
  EXPECT_EQ(
      largest_that_fits([](uint64_t) -> Result<double> { return error(Code::kInternal, "x"); }, 5)
          .status()
          .code(),
      Code::kInternal);
}

}  // namespace
}  // namespace elixir::planner
