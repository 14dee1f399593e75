#pragma once

#include <string>
#include <string_view>

#include "tests/daemon/fake_trainer.h"
#include "tests/support/matchers.h"

namespace elixir::testing {

// Expects that elixird ends the rank's session. The message and the rank's header name the code and
// the rank that is the cause.
inline void expect_ended(FakeTrainer& rank, Code code, uint32_t cause, std::string_view part) {
  const shm::SessionFault fault = must(rank.wait_session_fault());
  expect_refused(Status(static_cast<Code>(fault.code), std::string(shm::get_text(fault.text))),
                 code, {part});
  EXPECT_EQ(fault.rank, cause);
  EXPECT_EQ(rank.header().fault.load(), static_cast<uint32_t>(code));
  EXPECT_EQ(rank.header().fault_rank.load(), cause);
  EXPECT_TRUE(rank.wait_end_of_file().ok());
}

}  // namespace elixir::testing
