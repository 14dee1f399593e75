#include "planner/profile.h"
