#pragma once

#include <stdexcept>
#include <string>

#include "base/export.h"

namespace elixir {

// A failure of the world (a bug is an ELIXIR_CHECK). The value is the exit code of every Elixir
// program that ends because of it. docs/errors.md is the same table, with remedies.
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 2,    // a flag, a configuration key, an API argument
  kResourceExhausted = 3,  // does not fit: memory, chunks, sessions
  kBadInput = 4,           // a file that cannot be used: not text, empty, truncated
  kUnavailable = 5,        // elixird cannot be reached, or went away
  kPeerLost = 6,           // another rank of the job died
  kVersionMismatch = 7,    // the other side speaks another layout version
  kAlreadyRunning = 8,     // a second elixird
  kProtocol = 9,           // the other side sent what no correct program sends
  kTimedOut = 10,          // a deadline passed with the other side alive
  kDiverged = 11,          // the loss or the gradients stay not finite
  kInternal = 70,          // an operating-system call failed unexpectedly
};

ELIXIR_PUBLIC const char* code_name(Code code);

class Status;

// The client library throws this. LibTorch throws too, and an operator in the middle of a forward
// pass has no other way out. code() is the exit code with which a program should end.
class ELIXIR_PUBLIC Error : public std::runtime_error {
 public:
  explicit Error(const Status& status);
  Error(const Error&) = default;
  ~Error() override;
  Code code() const { return code_; }
  int exit_code() const { return static_cast<int>(code_); }

 private:
  Code code_;
};

}  // namespace elixir
