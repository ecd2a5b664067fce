/* The version of the header that the library was built with. */
#include "winnow/version.h"

#define TEXT_OF(number) #number
#define DOTTED(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *wn_version(void) {
  return DOTTED(WN_VERSION_MAJOR, WN_VERSION_MINOR, WN_VERSION_PATCH);
}

int wn_version_number(void) {
  return WN_VERSION_NUMBER;
}
