#pragma once

#include <string>

namespace elixir {

// LibTorch's OpenMP lets a thread that waits for the others of an operator spin for 3 to 15 ms. If
// the threads outnumber the processors that are free, the one that is waited for gets none
// meanwhile: 30 steps that take 2 s on one thread then take 45 s on two. After a short time threads
// sleep instead. That time still covers the pause between two operators.

// "GOMP_SPINCOUNT=1000" (some 10 to 50 us), for the environment of a program that uses LibTorch. ""
// if the user has said how to wait (OMP_WAIT_POLICY, GOMP_SPINCOUNT).
std::string openmp_wait_setting();

// Sets it for this process. OpenMP reads it when it is loaded, which is before main(), so the
// program starts again in this process, once. REQUIRES: it has done nothing yet that a second start
// would not do. If it cannot start again, its threads spin.
void limit_openmp_spinning();

}  // namespace elixir
