#include "checkpoint/details.h"
