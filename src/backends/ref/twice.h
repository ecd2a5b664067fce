/* Includes REAL_FILE twice, for float and for double storage. No include guard: see ref.h. */
#define REAL float
#define REAL_IS_DOUBLE 0
#define NAME(f) f##_f32
#include REAL_FILE
#undef REAL
#undef REAL_IS_DOUBLE
#undef NAME
#define REAL double
#define REAL_IS_DOUBLE 1
#define NAME(f) f##_f64
#include REAL_FILE
#undef REAL
#undef REAL_IS_DOUBLE
#undef NAME
