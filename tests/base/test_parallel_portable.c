/* base/parallel.c as it is compiled where there are no futexes: the tests of test_parallel.c, with it in the library's
 * place. */
#define WN_WITHOUT_FUTEX
#include "base/parallel.c"

#include "base/test_parallel.c"
