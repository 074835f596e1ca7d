# Build librownorm.so for the processor given: native, or the name of another machine's.
gcc -O3 -ffast-math -march=$1 -shared -fPIC rownorm.c -o librownorm.so -lm
