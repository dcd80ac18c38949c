/* sum_of(n): the sum of k * n for k below 1000, by a team of threads. */
long long sum_of(int n) {
    long long sum = 0;
#pragma omp parallel for num_threads(3) reduction(+ : sum)
    for (int k = 0; k < 1000; k++) sum += (long long)k * n;
    return sum;
}
