#include "client/plan/chunk_plan.h"

#include "shm/shape.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

std::vector<ParameterSize> sizes(std::initializer_list<uint64_t> numels) {
  std::vector<ParameterSize> result;
  for (uint64_t numel : numels) result.push_back({"p" + std::to_string(result.size()), numel});
  return result;
}

// GPT-2 by its widths, in the order of registration.
std::vector<ParameterSize> gpt2(uint64_t width, uint64_t layers) {
  std::vector<ParameterSize> result = {{"wte", 50257 * width}, {"wpe", 1024 * width}};
  for (uint64_t i = 0; i < layers; ++i) {
    const std::string h = "h." + std::to_string(i);
    for (const auto& [name, numel] :
         std::initializer_list<std::pair<const char*, uint64_t>>{{".ln_1.w", width},
                                                                 {".ln_1.b", width},
                                                                 {".qkv.w", 3 * width * width},
                                                                 {".qkv.b", 3 * width},
                                                                 {".proj.w", width * width},
                                                                 {".proj.b", width},
                                                                 {".ln_2.w", width},
                                                                 {".ln_2.b", width},
                                                                 {".fc.w", 4 * width * width},
                                                                 {".fc.b", 4 * width},
                                                                 {".out.w", 4 * width * width},
                                                                 {".out.b", width}}) {
      result.push_back({h + name, numel});
    }
  }
  result.push_back({"ln_f.w", width});
  result.push_back({"ln_f.b", width});
  return result;
}

TEST(ChunkPlan, PacksNextFitInOrder) {
  const ChunkPlan plan = *plan_chunks(sizes({128, 128, 256, 128}), 384);
  EXPECT_EQ(plan.n_chunks, 2u);
  EXPECT_EQ(plan.places[0], (shm::ParameterPlace{"p0", 0, 0, 128}));
  EXPECT_EQ(plan.places[1], (shm::ParameterPlace{"p1", 0, 128, 128}));
  EXPECT_EQ(plan.places[2], (shm::ParameterPlace{"p2", 1, 0, 256}));  // 256 left of 384: closed
  EXPECT_EQ(plan.places[3], (shm::ParameterPlace{"p3", 1, 256, 128}));
}

TEST(ChunkPlan, StartsEveryParameterAligned) {
  const ChunkPlan plan = *plan_chunks(sizes({1, 3, 129, 7}), 1024);
  for (const shm::ParameterPlace& place : plan.places) {
    EXPECT_EQ(place.offset % shm::kAlignNumel, 0u) << place.name;
  }
  EXPECT_EQ(plan.places[3].offset, 128u + 128 + 256);
}

TEST(ChunkPlan, GivesALongParameterChunksOfItsOwn) {
  ChunkPlan plan = *plan_chunks(sizes({100, 1000, 5, 200, 2}), 512);
  EXPECT_EQ(plan.n_chunks, 4u);
  EXPECT_EQ(plan.places[1], (shm::ParameterPlace{"p1", 1, 0, 1000}));
  EXPECT_EQ(plan.places[2], (shm::ParameterPlace{"p2", 3, 0, 5}));
  EXPECT_EQ(plan.order(), (std::vector<uint32_t>{0, 1, 2, 3}));
  ChunkPlan two = plan;
  place_on_gpu(two, 2);  // which would cut it
  EXPECT_EQ(two.n_gpu_chunks, 1u);
  EXPECT_EQ(two.places[0].chunk, 3u);
  EXPECT_EQ(two.places[1].chunk, 0u);
  EXPECT_EQ(two.order(), (std::vector<uint32_t>{3, 0, 1, 2}));
  place_on_gpu(plan, 3);
  EXPECT_EQ(plan.n_gpu_chunks, 3u);
  EXPECT_EQ(plan.places[1].chunk, 2u);
  EXPECT_EQ(plan.places[2].chunk, 0u);
  EXPECT_EQ(plan.order(), (std::vector<uint32_t>{1, 2, 3, 0}));
}

TEST(ChunkPlan, RefusesMoreChunksThanThereCanBe) {
  const std::vector<ParameterSize> large = {{"p", uint64_t{1} << 30}, {"q", 5}};
  expect_refused(plan_chunks(large, 128).status(), Code::kInvalidArgument, {"--chunk-numel 2176"});
  EXPECT_TRUE(plan_chunks(large, 2176).ok());
  EXPECT_TRUE(plan_chunks(large, 1 << 12).ok());
}

TEST(ChunkPlan, RefusesAModelWithoutParameters) {
  EXPECT_EQ(plan_chunks({}, 0).status().code(), Code::kInvalidArgument);
}

TEST(ChunkPlan, WastesBelowFourPercentOfGpt2FromSmallUp) {
  const std::pair<uint64_t, uint64_t> models[] = {{768, 12},  {1024, 24}, {1600, 48}, {3072, 32},
                                                  {4096, 48}, {8192, 18}, {8192, 24}};
  for (const auto& [width, layers] : models) {
    const ChunkPlan plan = *plan_chunks(gpt2(width, layers), 0);
    EXPECT_LT(plan.waste_ratio(), 0.04) << width;
    EXPECT_GT(plan.n_chunks, 1u) << width;
  }
}

// An embedding sets the length of all chunks only where chunks would be short.
TEST(ChunkPlan, AnEmbeddingIsLongerThanTheChunksOfARealModel) {
  for (const auto& [width, layers] : {std::pair{768u, 12u}, {1024u, 24u}}) {
    const uint64_t of_a_layer = 4ull * width * width;
    const ChunkPlan plan = *plan_chunks(gpt2(width, layers), 0);
    EXPECT_GE(plan.chunk_numel, of_a_layer);
    EXPECT_LE(plan.chunk_numel, of_a_layer + of_a_layer / 4);
  }
  EXPECT_GE(plan_chunks(gpt2(64, 4), 0)->chunk_numel, 50257u * 64 / 4);
  // Not where all are alike, or too many are long.
  std::vector<uint64_t> numels(20, 3ull << 20);
  for (int i = 0; i < 5; ++i) numels[i] = 12ull << 20;
  std::vector<ParameterSize> five;
  for (const uint64_t numel : numels) five.push_back({"p", numel});
  EXPECT_GE(plan_chunks(five, 0)->chunk_numel, 12ull << 20);
}

// In the order of next use every stride-th of those that are not on the device; numbers of the
// others keep their order.
TEST(ChunkPlan, EveryStrideThChunkSwingsAndIsNumberedBehindTheOthers) {
  const std::vector<ParameterSize> nine(9, {.name = "p", .numel = 1280});
  for (const auto& [gpu, stride, order] :
       std::vector<std::tuple<uint32_t, uint32_t, std::vector<uint32_t>>>{
           {0, 0, {0, 1, 2, 3, 4, 5, 6, 7, 8}},
           {0, 2, {0, 5, 1, 6, 2, 7, 3, 8, 4}},
           {0, 3, {0, 1, 6, 2, 3, 7, 4, 5, 8}},
           {0, 1, {0, 1, 2, 3, 4, 5, 6, 7, 8}},
           {2, 2, {7, 8, 0, 4, 1, 5, 2, 6, 3}},
           {0, 10, {0, 1, 2, 3, 4, 5, 6, 7, 8}}}) {
    ChunkPlan plan = *plan_chunks(nine, 1280);
    place_on_gpu(plan, gpu);
    place_swing(plan, stride);
    EXPECT_EQ(plan.n_swing_chunks, stride == 0 ? 0 : (9 - gpu) / stride) << stride;
    std::vector<uint32_t> chunks;
    for (const shm::ParameterPlace& place : plan.places) chunks.push_back(place.chunk);
    EXPECT_EQ(chunks, order) << gpu << " on the device, stride " << stride;
  }
}

}  // namespace
}  // namespace elixir
