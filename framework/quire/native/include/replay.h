// Calls of exported functions that are stored with their arguments and made again by one function.
//
// quire appends `REPLAYABLE(name)` for each function of a library whose calls may be replayed. Each
// argument of a stored call has 8 bytes, which begin with its value.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "export.h"

namespace replay {

typedef int (*MakeCall)(const uint64_t* arguments);

// A function as the loader sees it: a letter for the type of each parameter, and what calls it.
struct Function {
    const char* types;
    MakeCall make_call;
};

struct StoredCall {
    MakeCall make_call;
    const uint64_t* arguments;
};

// The letters are those of `quire.native.stored_calls`.
template <class Type>
constexpr char letter() {
    static_assert(sizeof(Type) <= 8 && std::is_trivially_copyable<Type>::value);
    if (std::is_pointer<Type>::value) return 'P';
    if (std::is_floating_point<Type>::value) return sizeof(Type) == 4 ? 'f' : 'd';
    return sizeof(Type) == 8 ? 'q' : sizeof(Type) == 4 ? 'i' : sizeof(Type) == 2 ? 'h' : 'b';
}

template <class Type>
Type argument(uint64_t slot) {
    Type value;
    std::memcpy(&value, &slot, sizeof value);
    return value;
}

template <auto function, class Type = decltype(function)>
struct Replayable;

template <auto function, class Result, class... Types, bool IS_NOEXCEPT>
struct Replayable<function, Result (*)(Types...) noexcept(IS_NOEXCEPT)> {
    static constexpr char TYPES[] = {letter<Types>()..., 0};

    template <size_t... I>
    static int call(const uint64_t* arguments, std::index_sequence<I...>) {
        if constexpr (std::is_void<Result>::value) {
            function(argument<Types>(arguments[I])...);
            return 0;
        } else {
            return function(argument<Types>(arguments[I])...);
        }
    }
    static int make_call(const uint64_t* arguments) {
        return call(arguments, std::index_sequence_for<Types...>());
    }
};

}  // namespace replay

#define REPLAYABLE(name)                                            \
    EXPORT const replay::Function* replayable_##name() {            \
        typedef replay::Replayable<&::name> Own;                    \
        static const replay::Function own = {Own::TYPES, Own::make_call}; \
        return &own;                                                \
    }

// Makes calls of any libraries until one returns a status other than 0. Returns that status, and
// writes the number of calls that succeeded.
EXPORT int replay_calls(const replay::StoredCall* calls, int64_t count, int64_t* succeeded) {
    for (int64_t i = 0; i < count; i++) {
        *succeeded = i;
        if (int status = calls[i].make_call(calls[i].arguments)) return status;
    }
    *succeeded = count;
    return 0;
}
