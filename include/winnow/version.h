/* winnow: the version. These three numbers are its only source: CMake, the package files and the shared library's name
 * read them here.
 *
 * What a version promises: a program built with 1.MINOR runs with every later 1.x if it uses what is marked stable; a
 * patch version only corrects. Before 1.0 the minor number played the major one's part. docs/api.md has the details. */
#ifndef WINNOW_VERSION_H
#define WINNOW_VERSION_H

#include "winnow/status.h"

/* The headers' version in three numbers. */
#define WN_VERSION_MAJOR 1
#define WN_VERSION_MINOR 0
#define WN_VERSION_PATCH 0
/* The headers' version as one number, for #if: 1.0.0 is 10000. */
#define WN_VERSION_NUMBER (WN_VERSION_MAJOR * 10000 + WN_VERSION_MINOR * 100 + WN_VERSION_PATCH)

WN_STABLE_BEGIN

/* The library's version, "1.0.0"; a program may have been built with the headers of another one. Static. */
const char *wn_version(void);
/* The same as one number, like WN_VERSION_NUMBER. */
int wn_version_number(void);

WN_API_END
#endif
