// Casts on the device give the bits of optim_cpu/formats.h.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/compute_type_names.h"
#include "base/processors.h"
#include "kernels/element.h"
#include "kernels/kernels.h"
#include "tests/kernels/device_array.h"
#include "tests/optim_cpu/states.h"

namespace elixir::kernels {
namespace {

using optim::bits_float;
using optim::float_bits;
using optim::Random;

template <ComputeType kFrom>
void check_all_halves() {
  // Twice all, and an odd number more: whole blocks and a tail.
  std::vector<uint16_t> values(2 * 0x10000 + 77);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  const DeviceArray<uint16_t> from(values);
  const DeviceArray<float> result(values.size() + 4);
  const float untouched = result.read().back();
  const Stream stream;
  ASSERT_TRUE(launch_cast_to_fp32(kFrom, from.data(), result.data(), values.size(), stream).ok());
  stream.wait();
  const std::vector<float> results = result.read();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(float_bits(results[i]), float_bits(Format<kFrom>::widen(values[i])))
        << compute_type_name(kFrom) << std::hex << " 0x" << values[i];
  }
  for (size_t i = values.size(); i < results.size(); ++i) EXPECT_EQ(results[i], untouched);
}

TEST(CastOnGpu, All16BitValuesToFp32) {
  check_all_halves<ComputeType::kBf16>();
  check_all_halves<ComputeType::kFp16>();
}

// One float in 16, another of each 16 in every run of them.
void check_floats(ComputeType to, uint16_t (*convert)(float), size_t blocks,
                  std::atomic<size_t>& next, std::atomic<size_t>& unequal) {
  constexpr size_t kBlockNumel = 1 << 20;
  const Stream stream;
  std::vector<float> values(kBlockNumel);
  std::vector<uint16_t> results(kBlockNumel);
  DeviceArray<float> from(kBlockNumel);
  DeviceArray<uint16_t> result(kBlockNumel);
  for (size_t block = next++; block < blocks; block = next++) {
    Random random(block);
    // Spread over all floats, however few blocks there are.
    const auto first = static_cast<uint32_t>(block * (0x10000 / blocks) % 0x10000);
    for (size_t i = 0; i < kBlockNumel; ++i) {
      const auto high = static_cast<uint32_t>(i / 16);
      const auto low = (first + static_cast<uint32_t>(i % 16) * 0x1000 +
                        static_cast<uint32_t>(random.below(16))) &
                       0xffff;
      values[i] = bits_float(high << 16 | low);
    }
    from.upload(values, stream);
    if (!launch_cast_from_fp32(to, from.data(), result.data(), kBlockNumel, stream).ok()) {
      ++unequal;
    }
    result.download(results, stream);
    stream.wait();
    for (size_t i = 0; i < kBlockNumel; ++i) unequal += results[i] != convert(values[i]);
  }
}

TEST(CastOnGpu, HundredsOfMillionsOfFloats) {
  const size_t blocks = test_numel(256);  // of 2^20 floats: one in 16 of all
  const std::pair<ComputeType, uint16_t (*)(float)> casts[] = {
      {ComputeType::kBf16, [](float value) { return optim::split_bf16(value).param; }},
      {ComputeType::kFp16, [](float value) { return optim::float_to_half(value); }}};
  for (const auto& [to, convert] : casts) {
    std::atomic<size_t> next = 0, unequal = 0;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < usable_processors().size(); ++i) {
      threads.emplace_back(
          [&, to = to, convert = convert] { check_floats(to, convert, blocks, next, unequal); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(unequal, 0U) << compute_type_name(to);
  }
}

TEST(CastOnGpu, AnyLengthAndFp32IsACopy) {
  const Stream stream;
  for (ComputeType to : optim::kTypes) {
    for (size_t numel : {1, 3, 4, 5, 1023, 4095, 4096, 4097, 9999}) {
      Random random(numel);
      std::vector<float> values(numel);
      for (float& value : values) value = bits_float(random.float_of_any_kind());
      const DeviceArray<float> from(values);
      const DeviceArray<std::byte> result((numel + 4) * element_bytes(to));
      ASSERT_TRUE(launch_cast_from_fp32(to, from.data(), result.data(), numel, stream).ok());
      stream.wait();
      const std::vector<std::byte> results = result.read();
      for (size_t i = 0; i < numel; ++i) {
        std::byte expected[4];
        if (to == ComputeType::kFp32) {
          memcpy(expected, &values[i], 4);
        } else {
          const uint16_t narrow = to == ComputeType::kBf16 ? optim::split_bf16(values[i]).param
                                                           : optim::float_to_half(values[i]);
          memcpy(expected, &narrow, 2);
        }
        ASSERT_EQ(memcmp(&results[i * element_bytes(to)], expected, element_bytes(to)), 0)
            << compute_type_name(to) << " element " << i << " of " << numel;
      }
      for (size_t i = numel * element_bytes(to); i < results.size(); ++i) {
        ASSERT_EQ(results[i], std::byte{0xa5}) << "beyond the end";
      }
    }
  }
}

}  // namespace
}  // namespace elixir::kernels
