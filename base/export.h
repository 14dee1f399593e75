#pragma once

// What is seen of a shared library (libelixir.so, libelixir_cuda.so). Everything else is compiled
// with hidden visibility.
#define ELIXIR_PUBLIC __attribute__((visibility("default")))
