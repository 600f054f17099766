# What makes a mistake in memory harder to use, for all code of both programs: addresses that differ
# at each start, guarded stack frames, checked string functions, and tables that nobody writes once
# the program runs.
# Archives are linked into programs and into a shared library.
set(EDGEPACK_HARDEN_COMPILE -fPIC -fstack-protector-strong)
set(EDGEPACK_HARDEN_LINK $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>
  -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
# The checked functions are glibc's (musl has none), need an optimised build, and stand in the way of
# the address sanitizer's own.
if(NOT EDGEPACK_SANITIZE)
  list(APPEND EDGEPACK_HARDEN_COMPILE
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()
