#!/bin/sh
echo gx1:4
echo gx2:4
echo gx3:4
