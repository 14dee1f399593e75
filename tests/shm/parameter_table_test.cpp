#include "shm/parameter_table.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/support/matchers.h"

namespace elixir::shm {
namespace {

const Shape kShape{.type = ComputeType::kBf16,
                   .ranks = 2,
                   .n_chunks = 3,
                   .n_frozen_chunks = 1,
                   .n_parameters = 4,
                   .chunk_numel = 1024};

std::vector<ParameterPlace> good_places() {
  return {{"a.weight", 0, 0, 1024},
          {"b.weight", 1, 0, 100},
          {"b.bias", 1, 128, 896},
          {"c", 2, 0, 1},
          {"frozen", 3, 0, 7}};
}

Code code_of(const std::vector<ParameterPlace>& places) {
  Shape shape = kShape;
  shape.n_parameters = static_cast<uint32_t>(std::count_if(
      places.begin(), places.end(), [](const auto& place) { return place.chunk != 3; }));
  return decode_table(encode_table(places), shape).status().code();
}

TEST(ParameterTableTest, ComesBackAsItWasEncoded) {
  const auto decoded = must(decode_table(encode_table(good_places()), kShape));
  EXPECT_EQ(decoded, good_places());
  EXPECT_EQ(total_numel(decoded), 1024u + 100 + 896 + 1 + 7);
}

TEST(ParameterTableTest, EveryTruncationAndExtensionIsRefused) {
  std::vector<std::byte> bytes = encode_table(good_places());
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::span<const std::byte> part(bytes.data(), length);
    ASSERT_EQ(decode_table(part, kShape).status().code(), Code::kProtocol) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(decode_table(bytes, kShape).status().code(), Code::kProtocol);
}

TEST(ParameterTableTest, PlacesThatCannotBeAreRefused) {
  ASSERT_EQ(code_of(good_places()), Code::kOk);
  const std::vector<ParameterPlace> bad[] = {
      {},                                                      // nothing
      {{"", 0, 0, 1}},                                         // no name
      {{"a", 0, 0, 1}, {"a", 1, 0, 1}},                        // a name twice
      {{"a", 4, 0, 1}},                                        // no such chunk
      {{"a", 3, 0, 1}, {"b", 0, 0, 1}},                        // a frozen one first
      {{"a", 1, 128, 1025}},                                   // longer than a chunk, amid one
      {{"a", 2, 0, 1025}},                                     // its end is in a frozen one
      {{"a", 0, 0, 3 * 1024 + 1}},                             // as far as a frozen one
      {{"a", 0, 0, ~0ull}},                                    // longer than all chunks
      {{"a", 0, 0, 1025}, {"b", 1, 128, 1}},                   // another one behind its end
      {{"b", 1, 896, 1}, {"a", 0, 0, 1025}},                   // in the other order
      {{"a", 0, 0, 2049}, {"b", 1, 0, 1024}},                  // a chunk of a long one
      {{"a", 0, 0, 1025}, {"b", 1, 0, 1025}},                  // two long ones
      {{"a", 0, 1024, 1}},                                     // behind the chunk
      {{"a", 0, 128, 1000}},                                   // over its end
      {{"a", 0, 64, 1}},                                       // misaligned
      {{"a", 0, 0, 0}},                                        // empty
      {{"a", 0, 0, 129}, {"b", 0, 128, 1}},                    // overlapping
      {{"b", 0, 128, 1}, {"a", 0, 0, 1024}},                   // overlapping, in the other order
      {{"a", 0, 0, 1}, {"b", 0, 0, 1}},                        // at one place
      {{"a", 0, 0, 512}, {"b", 0, 128, 1}, {"c", 0, 256, 1}},  // one over two
      {{"a", 0, ~0ull - 127, 256}},                            // a sum that wraps
      {{std::string(kMaxNameBytes + 1, 'x'), 0, 0, 1}},        // a name beyond the limit
  };
  for (const auto& places : bad) {
    EXPECT_EQ(code_of(places), Code::kProtocol) << &places - bad;
  }
  EXPECT_EQ(code_of({{std::string(kMaxNameBytes, 'x'), 0, 0, 1}}), Code::kOk);
}

// Three chunks placed on the CPU, two on the GPU, three frozen.
TEST(ParameterTableTest, OneLongerThanAChunkHasChunksOfOneHomeToItself) {
  const Shape shape{.n_chunks = 3,
                    .n_gpu_chunks = 2,
                    .n_frozen_chunks = 3,
                    .n_parameters = 3,
                    .chunk_numel = 256};
  const std::vector<ParameterPlace> places = {
      {"cpu", 1, 0, 257}, {"gpu", 3, 0, 512}, {"short", 0, 128, 128}, {"frozen", 5, 0, 513}};
  const auto decoded = must(decode_table(encode_table(places), shape));
  EXPECT_EQ(decoded, places);
  const auto code_with = [&](size_t i, const ParameterPlace& place) {
    std::vector<ParameterPlace> others = places;
    others[i] = place;
    return decode_table(encode_table(others), shape).status().code();
  };
  EXPECT_EQ(code_with(0, {"cpu", 1, 0, 512}), Code::kOk);
  EXPECT_EQ(code_with(0, {"cpu", 1, 0, 513}), Code::kProtocol);  // its end is on the GPU
  EXPECT_EQ(code_with(0, {"cpu", 0, 0, 257}), Code::kProtocol);  // not alone
  EXPECT_EQ(code_with(1, {"gpu", 3, 0, 513}), Code::kProtocol);  // its end is frozen
  EXPECT_EQ(code_with(1, {"gpu", 4, 0, 257}), Code::kProtocol);  // so it is
  EXPECT_EQ(code_with(1, {"gpu", 2, 0, 257}), Code::kProtocol);  // both another's, and the CPU's
  EXPECT_EQ(code_with(3, {"frozen", 5, 0, 768}), Code::kOk);
  EXPECT_EQ(code_with(3, {"frozen", 5, 0, 769}), Code::kProtocol);  // behind all chunks
  EXPECT_EQ(code_with(3, {"frozen", 6, 0, 513}), Code::kProtocol);
}

TEST(ParameterTableTest, PartsAreOfAChunkEachAndChunksAreFoundByElements) {
  const Shape shape{.n_chunks = 5, .chunk_numel = 256};
  const ParameterPlace place{"long", 1, 0, 700}, within{"short", 0, 128, 100};
  const auto expect_run = [](ChunkRun run, uint32_t first, uint32_t count) {
    EXPECT_EQ(run.first, first);
    EXPECT_EQ(run.count, count);
  };
  expect_run(chunks_of(place, shape), 1, 3);
  expect_run(chunks_of(within, shape), 0, 1);
  expect_run(chunks_of(place, shape, 0, 256), 1, 1);
  expect_run(chunks_of(place, shape, 255, 2), 1, 2);
  expect_run(chunks_of(place, shape, 256, 256), 2, 1);
  expect_run(chunks_of(place, shape, 511, 189), 2, 2);
  expect_run(chunks_of(place, shape, 699, 1), 3, 1);
  expect_run(chunks_of(within, shape, 99, 1), 0, 1);
  expect_run(chunks_of({"whole", 2, 0, 256}, shape), 2, 1);
  expect_run(chunks_of({"twice", 2, 0, 512}, shape), 2, 2);
  const auto expect_part = [](ParameterPart part, uint64_t first, uint64_t offset, uint64_t numel) {
    EXPECT_EQ(part.first, first);
    EXPECT_EQ(part.offset, offset);
    EXPECT_EQ(part.numel, numel);
  };
  expect_part(part_in(place, shape, 1), 0, 0, 256);
  expect_part(part_in(place, shape, 2), 256, 0, 256);
  expect_part(part_in(place, shape, 3), 512, 0, 188);
  expect_part(part_in(within, shape, 0), 0, 128, 100);
}

TEST(ParameterTableTest, AsManyAreTrainedAsTheShapeSays) {
  for (const uint32_t trained : {0u, 3u, 5u, 6u, kMaxParameters}) {
    Shape shape = kShape;
    shape.n_parameters = trained;
    EXPECT_EQ(decode_table(encode_table(good_places()), shape).status().code(), Code::kProtocol)
        << trained;
  }
}

TEST(ParameterTableTest, ACountThatLiesIsRefused) {
  for (uint32_t count : {0u, 3u, 4u, 6u, kMaxParameters, kMaxParameters + 1, ~0u}) {
    std::vector<std::byte> bytes = encode_table(good_places());
    std::memcpy(bytes.data(), &count, sizeof count);
    EXPECT_EQ(decode_table(bytes, kShape).status().code(), Code::kProtocol) << count;
  }
}

TEST(ParameterTableTest, TravelsInADescriptor) {
  const std::vector<std::byte> bytes = encode_table(good_places());
  const UniqueFd fd = must(write_table_fd(bytes));
  const auto read = must(read_table_fd(fd.get(), bytes.size()));
  EXPECT_EQ(read, bytes);
  EXPECT_EQ(table_xxh64(read), table_xxh64(bytes));

  EXPECT_EQ(read_table_fd(fd.get(), bytes.size() + 1).status().code(), Code::kProtocol);
  EXPECT_EQ(read_table_fd(fd.get(), kMaxTableBytes + 1).status().code(), Code::kProtocol);
  ASSERT_EQ(::ftruncate(fd.get(), 10), 0);
  EXPECT_EQ(read_table_fd(fd.get(), bytes.size()).status().code(), Code::kProtocol);
}

TEST(ParameterTableTest, TheHashSeesEveryByte) {
  const std::vector<std::byte> bytes = encode_table(good_places());
  for (size_t place = 0; place < bytes.size(); ++place) {
    std::vector<std::byte> other = bytes;
    other[place] ^= std::byte{1};
    ASSERT_NE(table_xxh64(other), table_xxh64(bytes));
  }
}

}  // namespace
}  // namespace elixir::shm
