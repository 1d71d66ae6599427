// What a library shows: plain C functions.
#pragma once

#define EXPORT extern "C" __attribute__((visibility("default")))
