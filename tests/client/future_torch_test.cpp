// A process whose torch is of the future: whatever of Elixir is called first says so in one line.

#include <gtest/gtest.h>

#include <cstdint>

#include "client/tensors/interception.h"
#include "client/tensors/meta_init.h"
#include "client/tensors/torch_version.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

// In the place of libtorch_cpu.so's: the loader takes a program's own functions first.
extern "C" __attribute__((visibility("default"))) uint64_t aoti_torch_abi_version() {
  return uint64_t{2} << 56 | uint64_t{99} << 48;
}

namespace elixir {
namespace {

TEST(FutureTorch, IsNamedWithTheRemedyBeforeAnythingIsTouched) {
  ASSERT_EQ(torch_of_process(), (TorchVersion{2, 99}));
  for (const bool building : {false, true}) {
    const Status refused = thrown([&] {
      if (building) {
        const MetaInit init;
      } else {
        keep_interception();
      }
    });
    EXPECT_EQ(refused.code(), Code::kVersionMismatch);
    EXPECT_THAT(refused.message(),
                HasSubstr("the program has torch 2.99: use the libelixir.so in"));
  }
}

}  // namespace
}  // namespace elixir
