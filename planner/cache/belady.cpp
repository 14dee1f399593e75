#include "planner/cache/belady.h"
