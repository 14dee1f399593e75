#include "checkpoint/manifest.h"
