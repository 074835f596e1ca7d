from ray_classifier import main

if __name__ == "__main__":
    main()
