# libjpeg-turbo, with its NEON code for ARM. (That for x86 is written for nasm and left out.)
set(_jpeg "${EDGEPACK_OPENCV_SOURCE}/3rdparty/libjpeg-turbo")

set(_16
  jcapistd jccolor jcdiffct jclossls jcmainct jcprepct jcsample jdapistd jdcolor jddiffct jdlossls
  jdmainct jdpostct jdsample jutils)
set(_12
  ${_16} jccoefct jcdctmgr jdcoefct jddctmgr jdmerge jfdctfst jfdctint jidctflt jidctfst jidctint
  jidctred jquant1 jquant2)
set(_8
  ${_12} jaricom jcapimin jcarith jchuff jcicc jcinit jclhuff jcmarker jcmaster jcomapi jcparam
  jcphuff jctrans jdapimin jdarith jdatadst jdatasrc jdhuff jdicc jdinput jdlhuff jdmarker jdmaster
  jdphuff jdtrans jerror jfdctflt jmemmgr jmemnobs jpeg_nbits)

set(JPEG_LIB_VERSION 70)
set(VERSION "3.1.2")
set(LIBJPEG_TURBO_VERSION_NUMBER 3001002)
set(COPYRIGHT_YEAR "1991-2025")
set(BUILD "edgepack")
set(INLINE "inline")
set(HIDDEN "")
set(THREAD_LOCAL "")
set(SIZE_T "${CMAKE_SIZEOF_VOID_P}")
set(HAVE_BUILTIN_CTZL 1)
set(C_ARITH_CODING_SUPPORTED 1)
set(D_ARITH_CODING_SUPPORTED 1)
set(HAVE_VLD1_S16_X3 1)
set(HAVE_VLD1_U16_X2 1)
set(HAVE_VLD1Q_U8_X4 1)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(arm|aarch64)")
  set(WITH_SIMD 1)
endif()
foreach(_header jconfig.h jconfigint.h jversion.h)
  configure_file("${_jpeg}/${_header}.in" "${_generated}/jpeg/${_header}")
endforeach()

set(_jpeg_include "${_generated}/jpeg" "${_jpeg}/src")
foreach(_bits 8 12 16)
  list(TRANSFORM _${_bits} REPLACE "(.+)" "${_jpeg}/src/\\1.c" OUTPUT_VARIABLE _sources)
  add_library(jpeg${_bits} OBJECT ${_sources})
  target_include_directories(jpeg${_bits} PRIVATE ${_jpeg_include})
  target_compile_definitions(jpeg${_bits} PRIVATE
    BITS_IN_JSAMPLE=${_bits} NO_GETENV NO_PUTENV $<$<BOOL:${WITH_SIMD}>:NEON_INTRINSICS>)
  target_compile_options(jpeg${_bits} PRIVATE -O3)
endforeach()

if(WITH_SIMD)
  math(EXPR _width "8 * ${CMAKE_SIZEOF_VOID_P}")
  set(_simd "${_jpeg}/simd")
  configure_file("${_simd}/arm/neon-compat.h.in" "${_generated}/jpeg/neon-compat.h")
  set(_names
    aarch${_width}/jchuff aarch${_width}/jsimd jccolor jcgray jcphuff jcsample jdcolor jdmerge
    jdsample jfdctfst jfdctint jidctfst jidctint jidctred jquanti)
  list(TRANSFORM _names REPLACE "(.+)" "${_simd}/arm/\\1-neon.c" OUTPUT_VARIABLE _sources)
  list(TRANSFORM _sources REPLACE "jsimd-neon" "jsimd")
  target_sources(jpeg8 PRIVATE ${_sources})
  target_include_directories(jpeg8 PRIVATE "${_simd}/arm" "${_simd}")
endif()
