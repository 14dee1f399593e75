#include "models/export_room.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

TEST(ExportRoom, IsHeldWithoutANameUntilItIsGivenBack) {
  const TemporaryFolder folder;
  ExportRoom room = must(ExportRoom::hold(folder.path("out"), folder.path(), 1 << 20));
  EXPECT_TRUE(room.holds());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  room.give_back();
  EXPECT_FALSE(room.holds());
}

TEST(ExportRoom, TooLittleIsRefusedWithBothNumbers) {
  const TemporaryFolder folder;
  // More than any disk has.
  const Status status =
      ExportRoom::hold(folder.path("out"), folder.path(), uint64_t{1} << 50).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("--export " + folder.path("out")));
  EXPECT_THAT(status.message(), HasSubstr("takes 1024.00 TiB"));
  EXPECT_THAT(status.message(), HasSubstr(" free"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ExportRoom, AFolderThatCannotHaveFilesIsRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(ExportRoom::hold("x", folder.path("none"), 1).status().code(), Code::kInvalidArgument);
}

TEST(ExportRoom, TheModelsBytesAreThoseOfItsTypeAndItsFiles) {
  TrainOptions options;
  options.config = *planner::transformer_config("gpt2-nano");
  const uint64_t fp32 = must(export_bytes(options, {}));
  const uint64_t numel = planner::transformer_numel(options.config);
  EXPECT_GE(fp32, 4 * numel);
  EXPECT_LE(fp32, 4 * numel + (1 << 20));
  EXPECT_EQ(must(export_bytes(options, {{"tokenizer.json", std::string(1000, 'x')}})), fp32 + 1000);
  options.run.dtype = ComputeType::kBf16;
  EXPECT_NEAR(static_cast<double>(must(export_bytes(options, {}))),
              static_cast<double>(fp32) - 2.0 * static_cast<double>(numel), 10'000);
}

}  // namespace
}  // namespace elixir
