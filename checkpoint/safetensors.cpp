#include "checkpoint/safetensors.h"
