#include "checkpoint/load_plan.h"
