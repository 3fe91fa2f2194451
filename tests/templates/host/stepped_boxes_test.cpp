// stepped_boxes_test.cpp: q_boxes_test.cpp with boxes that take every second place of an axis, and every third of another.
#define PLACE_STEPS {1, 2, 1, 3}
#include "q_boxes_test.cpp"
