#include "planner/machine.h"
