#include "client/tensors/torch_version.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <string>

#include "client/tensors/dispatch_key.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(TorchVersion, TheProcessHasTheOneOfTheBuild) {
  EXPECT_EQ(torch_of_build(), torch_of_process());
  EXPECT_EQ(torch_of_build(), (TorchVersion{TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR}));
  EXPECT_NO_THROW(require_torch_of_build());
}

TEST(TorchVersion, AnotherMinorIsAnErrorOfOneLineWithTheRemedy) {
  for (const TorchVersion process :
       {TorchVersion{2, 99}, TorchVersion{3, 15}, TorchVersion{2, 9}}) {
    const Status refused = check_torch({2, 15}, process);
    EXPECT_EQ(refused.code(), Code::kVersionMismatch);
    const std::string has =
        "torch " + std::to_string(process.major) + "." + std::to_string(process.minor);
    EXPECT_THAT(refused.message(), HasSubstr("built for torch 2.15 and the program has " + has));
    EXPECT_THAT(refused.message(), HasSubstr("scripts/build.sh --torch"));
    EXPECT_EQ(refused.message().find('\n'), std::string::npos);
  }
  EXPECT_TRUE(check_torch({2, 15}, {2, 15}).ok());
}

// PyTorch gave the key that Elixir had first to something of its own, and everything compiled. So
// this looks into the torch that runs, before Elixir has registered anything: no operator has a
// kernel for either key. (A fallback of torch's for one would end this program at its start, since
// LibTorch takes one for a key, and Elixir has one.)
TEST(TorchVersion, NobodyElseUsesElixirsKeys) {
  for (const c10::DispatchKey key : {kChunkKey, kMetaInitKey}) {
    size_t operators = 0;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op) continue;
      ++operators;
      const bool taken = op->hasKernelForDispatchKey(key);
      EXPECT_FALSE(taken) << toString(name) << " has a kernel for " << toString(key);
    }
    EXPECT_GT(operators, 2000u);
  }
}

// The control: a key that torch uses is seen.
TEST(TorchVersion, AKeyThatTorchUsesIsSeen) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::SparseCPU));
}

}  // namespace
}  // namespace elixir
