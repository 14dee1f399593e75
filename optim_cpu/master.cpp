#include "optim_cpu/master.h"

#include <cstring>

#include "base/check.h"
#include "optim_cpu/formats.h"

namespace elixir::optim {

void load_master(ComputeType type, const float* values, size_t numel, void* param, void* master) {
  switch (type) {
    case ComputeType::kBf16:
      for (size_t i = 0; i < numel; ++i) {
        const SplitBf16 halves = split_bf16(values[i]);
        static_cast<uint16_t*>(param)[i] = halves.param;
        static_cast<uint16_t*>(master)[i] = halves.low;
      }
      return;
    case ComputeType::kFp16:
      for (size_t i = 0; i < numel; ++i) {
        static_cast<uint16_t*>(param)[i] = float_to_half(values[i]);
      }
      if (numel != 0) std::memcpy(master, values, numel * sizeof(float));
      return;
    case ComputeType::kFp32:
      if (numel != 0) std::memcpy(param, values, numel * sizeof(float));
      return;
  }
}

void read_master(ComputeType type, const void* param, const void* master, size_t numel,
                 float* values) {
  switch (type) {
    case ComputeType::kBf16:
      for (size_t i = 0; i < numel; ++i) {
        values[i] = join_bf16(static_cast<const uint16_t*>(param)[i],
                              static_cast<const uint16_t*>(master)[i]);
      }
      return;
    case ComputeType::kFp16:
      if (numel != 0) std::memcpy(values, master, numel * sizeof(float));
      return;
    case ComputeType::kFp32:
      if (numel != 0) std::memcpy(values, param, numel * sizeof(float));
      return;
  }
}

void complete_master(ComputeType type, const uint16_t* low, size_t numel, void* param,
                     void* master) {
  if (type == ComputeType::kBf16) {
    if (numel != 0) std::memcpy(master, low, numel * sizeof(uint16_t));
    return;
  }
  for (size_t i = 0; i < numel; ++i) {
    float value;
    read_master(type, static_cast<const std::byte*>(param) + i * element_bytes(type),
                static_cast<const std::byte*>(master) + i * master_bytes(type), 1, &value);
    // The value is the BF16 parameter, whose bits are its high half.
    value = join_bf16(static_cast<uint16_t>(float_bits(value) >> 16), low[i]);
    load_master(type, &value, 1, static_cast<std::byte*>(param) + i * element_bytes(type),
                static_cast<std::byte*>(master) + i * master_bytes(type));
  }
}

namespace {

template <typename Value, typename Widen>
void read_as(const std::byte* bytes, size_t numel, float* values, Widen widen) {
  for (size_t i = 0; i < numel; ++i) {
    Value value;
    std::memcpy(&value, bytes + i * sizeof value, sizeof value);
    values[i] = widen(value);
  }
}

}  // namespace

bool is_value_type(std::string_view type) {
  return type == "BF16" || type == "F16" || type == "F32" || type == "F64";
}

void read_values(std::string_view type, const std::byte* bytes, size_t numel, float* values) {
  ELIXIR_CHECK(is_value_type(type), "values of type {}", type);
  if (type == "BF16") return read_as<uint16_t>(bytes, numel, values, bf16_to_float);
  if (type == "F16") return read_as<uint16_t>(bytes, numel, values, half_to_float);
  if (type == "F64") {
    return read_as<double>(bytes, numel, values, [](double v) { return static_cast<float>(v); });
  }
  if (numel != 0) std::memcpy(values, bytes, numel * sizeof(float));
}

}  // namespace elixir::optim
