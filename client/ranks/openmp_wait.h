#pragma once

#include <string>

namespace elixir {

// LibTorch's OpenMP lets a thread that waits for the other threads of an operator spin for 3 to 15
// ms. If there are more threads than free processors, spinning threads leave no processor to the
// thread that still works. Then 30 steps that take 2 s on one thread take 45 s on two. With this
// setting, threads sleep after a short time, which still covers the pause between two operators.

// "GOMP_SPINCOUNT=1000" (some 10 to 50 us), for the environment of a program that uses LibTorch. ""
// if the user has chosen how to wait (OMP_WAIT_POLICY, GOMP_SPINCOUNT).
std::string openmp_wait_setting();

// Sets it for this process. OpenMP reads it when it is loaded, before main(), so the program starts
// again in this process, once. REQUIRES: the program has done nothing yet that a second start would
// not repeat. If it cannot start again, its threads spin.
void limit_openmp_spinning();

}  // namespace elixir
