#include "base/units.h"

#include "base/compute_type.h"
#include "base/compute_type_names.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(UnitsTest, ParsesEveryUnit) {
  const std::pair<const char*, uint64_t> known[] = {
      {"0", 0},
      {"4096", 4096},
      {"7B", 7},
      {"2KB", 2000},
      {"3MB", 3000000},
      {"1.5GB", 1500000000},
      {"1TB", 1000000000000},
      {"1KiB", 1024},
      {"512MiB", 512ull << 20},
      {"40GiB", 40ull << 30},
      {"2TiB", 2ull << 40},
      {"0.5 KiB", 512},
  };
  for (const auto& [text, bytes] : known) {
    const Result<uint64_t> parsed = parse_bytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(UnitsTest, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", " ", "GiB", "-1", "1 gib", "1gb", "12x", "nan", "inf", "1e30", "1GiB2", "9999999TiB"}) {
    SCOPED_TRACE(text);
    expect_refused(parse_bytes(text).status(), Code::kInvalidArgument, {"MiB"});
  }
}

TEST(UnitsTest, FormatsForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(5ull << 30), "5.00 GiB");
  EXPECT_EQ(format_bytes(3000ull << 40), "3000.00 TiB");
}

TEST(UnitsTest, RoundsUp) {
  EXPECT_EQ(round_up(0, 64), 0u);
  EXPECT_EQ(round_up(1, 64), 64u);
  EXPECT_EQ(round_up(64, 64), 64u);
  EXPECT_EQ(round_up(65, 64), 128u);
}

TEST(ComputeTypeTest, NamesAndBytes) {
  for (ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
    const Result<ComputeType> parsed = parse_name(kComputeTypeNames, compute_type_name(type));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, type);
    // Parameter and what completes it hold the FP32 master: 4 bytes, in FP16 beside the parameter.
    EXPECT_EQ(element_bytes(type) + master_bytes(type), type == ComputeType::kFp16 ? 6u : 4u);
  }
  EXPECT_EQ(parse_name(kComputeTypeNames, "fp64").status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace elixir
