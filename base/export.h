#pragma once

// Makes a symbol visible outside its shared library (libelixir.so, libelixir_cuda.so). Everything
// else is compiled with hidden visibility.
#define ELIXIR_PUBLIC __attribute__((visibility("default")))
