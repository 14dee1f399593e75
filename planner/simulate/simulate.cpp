#include "planner/simulate/simulate.h"
